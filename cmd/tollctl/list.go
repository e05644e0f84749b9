package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

// pageMost is the most that the node gives at once.
const pageMost = 1000

// listFlags are the flags of lists.
type listFlags struct {
	after string
	limit int
}

func (f *listFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.after, "after", "", "begin after this `ID`")
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "show `N` at most")
}

func (f *listFlags) check() error {
	if f.limit < 1 {
		return wrongUse("--limit must be at least 1")
	}
	return nil
}

// pages reads a list page by page until it ends or limit are read; parts are
// the lists within an answer, by name, that are put together. more is the id to
// go on after, "" at the end.
func pages(ctx context.Context, c *client, path string, f listFlags, parts ...string) (whole map[string]json.RawMessage, more string, err error) {
	if err := f.check(); err != nil {
		return nil, "", err
	}
	lists := map[string][]json.RawMessage{}
	after := f.after
	for count := 0; count < f.limit; {
		query := url.Values{"limit": {strconv.Itoa(min(pageMost, f.limit-count))}}
		if after != "" {
			query.Set("after", after)
		}
		var answer map[string]json.RawMessage
		if _, err := c.get(ctx, path, query, &answer); err != nil {
			return nil, "", err
		}
		if whole == nil {
			whole = answer
		}
		for _, part := range parts {
			var list []json.RawMessage
			if json.Unmarshal(answer[part], &list) != nil {
				return nil, "", c.stranger(200)
			}
			lists[part] = append(lists[part], list...)
			count += len(list)
		}
		more = ""
		if raw, ok := answer["next"]; ok {
			_ = json.Unmarshal(raw, &more) // no text: the end
		}
		if more == "" {
			break
		}
		after = more
	}
	delete(whole, "next")
	for _, part := range parts {
		list := lists[part]
		if list == nil {
			list = []json.RawMessage{}
		}
		text, err := json.Marshal(list)
		if err != nil {
			return nil, "", err
		}
		whole[part] = text
	}
	if more != "" {
		text, err := json.Marshal(more)
		if err != nil {
			return nil, "", err
		}
		whole["next"] = text
	}
	return whole, more, nil
}

// list reads a list and prints it, as JSON or by rows.
func list[T any](a *app, cmd *cobra.Command, path, part string, f listFlags, table func([]T)) error {
	whole, more, err := pages(cmd.Context(), a.client, path, f, part)
	if err != nil {
		return err
	}
	if a.format == "json" {
		return a.printWhole(whole)
	}
	var items []T
	if json.Unmarshal(whole[part], &items) != nil {
		return a.client.stranger(200)
	}
	table(items)
	a.more(more)
	return nil
}

func (a *app) printWhole(whole map[string]json.RawMessage) error {
	text, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	return a.json(text)
}

func (a *app) more(after string) {
	if after != "" {
		fmt.Fprintf(a.err, "tollctl: there may be more; go on with --after %s\n", after)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"tollgate/quota"
)

// nameRunesMax is how much of a name a table shows.
const nameRunesMax = 24

// newTable is a table without lines; the named columns are set to the right.
func newTable(header table.Row, right ...string) table.Writer {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	if header != nil {
		t.AppendHeader(header)
	}
	var columns []table.ColumnConfig
	for _, name := range right {
		columns = append(columns, table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

// show prints a table, or says that there is nothing.
func (a *app) show(t table.Writer, empty string) {
	if t.Length() == 0 {
		fmt.Fprintln(a.out, empty)
		return
	}
	fmt.Fprintln(a.out, t.Render())
}

// json prints the node's answer, indented.
func (a *app) json(raw json.RawMessage) error {
	var text bytes.Buffer
	if err := json.Indent(&text, bytes.TrimSpace(raw), "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.out, text.String())
	return err
}

// note tells of a change that nodes do not know yet.
func (a *app) note(c changed) {
	if c.Published != nil && !*c.Published {
		fmt.Fprintln(a.err, "tollctl: the change is made, but Redis does not answer now; the nodes follow it as soon as Redis does.")
	}
}

// clip shortens a name for a table.
func clip(name string) string {
	runes := []rune(name)
	if len(runes) <= nameRunesMax {
		return name
	}
	return string(runes[:nameRunesMax-1]) + "…"
}

// changed is what answers to changes carry besides the thing itself.
type changed struct {
	Published *bool `json:"published"`
}

// budgetRows are the limits of one scope, for a list of properties.
func budgetRows(t table.Writer, b quota.Budget) {
	t.AppendRows([]table.Row{
		{"per day", credits(b.Day)},
		{"per month", credits(b.Month)},
		{"limits", limitsLine(b.Limits)},
	})
}

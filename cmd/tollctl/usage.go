package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// amounts are what an account says; total and left nil are unlimited.
type amounts struct {
	Total    *int64 `json:"total"`
	Used     int64  `json:"used"`
	InFlight int64  `json:"in_flight"`
	Leased   int64  `json:"leased"`
	Left     *int64 `json:"left"`
}

type periodUsage struct {
	amounts
	ResetsAt time.Time `json:"resets_at"`
}

type scopeUsage struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	amounts
	OverageLimit int64        `json:"overage_limit"`
	Day          *periodUsage `json:"day"`
	Month        *periodUsage `json:"month"`
}

func usageCommand(a *app) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "usage TENANT",
		Short: "Show what a tenant, its apps and its keys have used",
		Long: `Shows what a tenant, its apps and its keys have used, in credits.

  used        charged
  in flight   held by calls that run now
  left        total - used - in flight; below 0: more was spent than there was
  leased      part of what is left: set aside by nodes for the next calls`,
		Example: "  tollctl usage t_acme",
		Args:    args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			whole, more, err := pages(cmd.Context(), a.client, path("tenants", args[0], "usage"), f, "apps", "keys")
			if err != nil {
				return err
			}
			if a.format == "json" {
				if err := a.printWhole(whole); err != nil {
					return err
				}
				return nil
			}
			if err := a.showUsage(whole); err != nil {
				return err
			}
			a.more(more)
			return nil
		},
	}
	f.add(cmd)
	return cmd
}

func (a *app) showUsage(whole map[string]json.RawMessage) error {
	var org scopeUsage
	var apps, keys []scopeUsage
	if json.Unmarshal(whole["org"], &org) != nil || json.Unmarshal(whole["apps"], &apps) != nil || json.Unmarshal(whole["keys"], &keys) != nil {
		return a.client.stranger(200)
	}
	t := newTable(table.Row{"SCOPE", "ID", "NAME", "PERIOD", "TOTAL", "USED", "IN FLIGHT", "LEFT", "LEASED"}, "TOTAL", "USED", "IN FLIGHT", "LEFT", "LEASED")
	add := func(scope string, each *scopeUsage) {
		row := func(period string, n amounts) {
			t.AppendRow(table.Row{scope, each.ID, clip(each.Name), period, credits(n.Total), grouped(n.Used), grouped(n.InFlight), credits(n.Left), grouped(n.Leased)})
		}
		row("ever", each.amounts)
		if each.Month != nil {
			row("month", each.Month.amounts)
		}
		if each.Day != nil {
			row("day", each.Day.amounts)
		}
	}
	add("org", &org)
	for i := range apps {
		add("app", &apps[i])
	}
	for i := range keys {
		add("key", &keys[i])
	}
	a.show(t, "")
	if org.OverageLimit > 0 {
		fmt.Fprintf(a.out, "\nBeyond its total the tenant may spend another %s.\n", grouped(org.OverageLimit))
	}
	return nil
}

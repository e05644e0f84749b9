package main

import (
	"encoding/json"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"tollgate/quota"
)

// tenantApp is an app as the node shows it; total nil is unlimited.
type tenantApp struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	Total  *int64 `json:"total"`
	quota.Budget
	changed
}

func appCommands(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "app", Short: "Apps: parts of a tenant with limits of their own"})
	cmd.AddCommand(appCreate(a), appList(a), appSet(a))
	return cmd
}

func (a *app) showApp(raw json.RawMessage, err error, each *tenantApp, sentence string) error {
	if err := a.say(raw, err, each.changed, sentence+"\n"); err != nil || a.format == "json" {
		return err
	}
	props := newTable(nil)
	props.AppendRows([]table.Row{{"id", each.ID}, {"tenant", each.Tenant}, {"name", each.Name}, {"total", credits(each.Total)}})
	budgetRows(props, each.Budget)
	a.show(props, "")
	return nil
}

func appCreate(a *app) *cobra.Command {
	var limits limitFlags
	var id, name, total string
	cmd := &cobra.Command{
		Use:     "create TENANT",
		Short:   "Create an app",
		Example: "  tollctl app create t_acme --id a_web --name \"Web shop\" --month 200k",
		Args:    args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"name": name}
			if id != "" {
				body["id"] = id
			}
			n, err := amount("--total", total)
			if err != nil {
				return err
			}
			body["total"] = n
			if err := limits.into(cmd, body); err != nil {
				return err
			}
			var made tenantApp
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants", args[0], "apps"), a.opID, body, &made)
			return a.showApp(raw, err, &made, fmt.Sprintf("App %s is created. Give it a key: tollctl key create %s --app %s", made.ID, made.Tenant, made.ID))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&id, "id", "", "`ID`: a_ and up to 62 letters, digits, _ or - (default: made up)")
	cmd.Flags().StringVar(&name, "name", "", "`NAME` for people")
	cmd.Flags().StringVar(&total, "total", unlimited, "`CREDITS` that the app may spend of the tenant's, or unlimited")
	limits.add(cmd)
	opFlag(a, cmd)
	return cmd
}

func appSet(a *app) *cobra.Command {
	var limits limitFlags
	var name string
	var total func() error
	cmd := &cobra.Command{
		Use:     "set TENANT APP",
		Short:   "Change an app's limits; what was used stays as it is",
		Example: "  tollctl app set t_acme a_web --month unlimited",
		Args:    args("TENANT", "APP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := total(); err != nil {
				return err
			}
			body := map[string]any{}
			if cmd.Flags().Changed("name") {
				body["name"] = name
			}
			if err := limits.into(cmd, body); err != nil {
				return err
			}
			if len(body) == 0 {
				return wrongUse("nothing to change: give a flag, see tollctl app set --help")
			}
			var now tenantApp
			raw, err := a.client.change(cmd.Context(), "PATCH", path("tenants", args[0], "apps", args[1]), a.opID, body, &now)
			return a.showApp(raw, err, &now, fmt.Sprintf("App %s is changed.", now.ID))
		},
	}
	cmd.Flags().SortFlags = false
	total = noTotal(cmd)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` for people")
	limits.add(cmd)
	opFlag(a, cmd)
	return cmd
}

func appList(a *app) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list TENANT",
		Short: "List a tenant's apps",
		Args:  args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return list(a, cmd, path("tenants", args[0], "apps"), "apps", f, func(apps []tenantApp) {
				t := newTable(table.Row{"ID", "NAME", "TOTAL", "PER DAY", "PER MONTH", "LIMITS"}, "TOTAL", "PER DAY", "PER MONTH")
				for _, each := range apps {
					t.AppendRow(table.Row{each.ID, clip(each.Name), credits(each.Total), credits(each.Day), credits(each.Month), limitsLine(each.Limits)})
				}
				a.show(t, "The tenant has no apps. Create one: tollctl app create "+args[0])
			})
		},
	}
	f.add(cmd)
	return cmd
}

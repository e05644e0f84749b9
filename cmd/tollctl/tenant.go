package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"tollgate/quota"
)

// tenant is a tenant as the node shows it; total nil is unlimited.
type tenant struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Status       string          `json:"status"`
	Store        string          `json:"store"`
	Timezone     string          `json:"timezone"`
	Total        *int64          `json:"total"`
	OverageLimit int64           `json:"overage_limit"`
	Policy       json.RawMessage `json:"policy"`
	quota.Budget
	CreatedAt time.Time `json:"created_at"`
	changed
}

func tenantCommands(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "tenant", Short: "Tenants: who pays"})
	cmd.AddCommand(
		tenantCreate(a), tenantList(a), tenantShow(a), tenantSet(a),
		tenantStatus(a, "suspend", "Refuse a tenant's calls until it is resumed", "is suspended; its calls are refused"),
		tenantStatus(a, "resume", "Let a suspended tenant call again", "is active again"),
	)
	return cmd
}

// opFlag adds --op-id.
func opFlag(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.opID, "op-id", "", "`ID` of this change: with the same one it is made once, however often the command is repeated")
}

// tenantFlags are what create and set share.
type tenantFlags struct {
	name, overage, timezone, policy string
	limits                          limitFlags
}

func (f *tenantFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "`NAME` for people")
	flags.StringVar(&f.overage, "overage-limit", "", "`CREDITS` that may be spent beyond the total (default 0)")
	flags.StringVar(&f.timezone, "timezone", "", "`ZONE` in which days and months begin, as in Europe/Berlin (default UTC)")
	flags.StringVar(&f.policy, "policy", "", `what differs from the node's policy, as `+"`JSON`"+`: '{"outage":"deny"}'`)
	f.limits.add(cmd)
}

func (f *tenantFlags) into(cmd *cobra.Command, body map[string]any) error {
	given := cmd.Flags().Changed
	if given("name") {
		body["name"] = f.name
	}
	if given("timezone") {
		body["timezone"] = f.timezone
	}
	if given("overage-limit") {
		n, err := amount("--overage-limit", f.overage)
		if err != nil || n == nil {
			return wrongUse("--overage-limit: %q is no amount; for a tenant without limits, create it with --total unlimited", f.overage)
		}
		body["overage_limit"] = n
	}
	if given("policy") {
		if !json.Valid([]byte(f.policy)) {
			return wrongUse("--policy: this is not JSON; put it in quotes, as in --policy '{\"outage\":\"deny\"}'")
		}
		body["policy"] = json.RawMessage(f.policy)
	}
	return f.limits.into(cmd, body)
}

func tenantCreate(a *app) *cobra.Command {
	var f tenantFlags
	var id, total, store string
	cmd := &cobra.Command{
		Use:     "create --total CREDITS",
		Short:   "Create a tenant",
		Example: "  tollctl tenant create --id t_acme --name \"Acme Ltd\" --total 1M --overage-limit 50k --rpm 600",
		Args:    args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("total") {
				return wrongUse("--total is missing: the credits that the tenant may spend, or unlimited")
			}
			n, err := amount("--total", total)
			if err != nil {
				return err
			}
			body := map[string]any{"total": n}
			if id != "" {
				body["id"] = id
			}
			if store != "" {
				body["store"] = store
			}
			if err := f.into(cmd, body); err != nil {
				return err
			}
			var t tenant
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants"), a.opID, body, &t)
			return a.showTenant(raw, err, &t, fmt.Sprintf("Tenant %s is created. It needs an app next: tollctl app create %s", t.ID, t.ID))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&id, "id", "", "`ID`: t_ and up to 62 letters, digits, _ or - (default: made up)")
	cmd.Flags().StringVar(&total, "total", "", "`CREDITS` that the tenant may spend, or unlimited")
	f.add(cmd)
	cmd.Flags().StringVar(&store, "store", "", "`NAME` of the Redis where it lives, for ever (default \"default\")")
	opFlag(a, cmd)
	return cmd
}

func tenantSet(a *app) *cobra.Command {
	var f tenantFlags
	var total func() error
	cmd := &cobra.Command{
		Use:     "set TENANT",
		Short:   "Change a tenant's limits and settings; what was used stays as it is",
		Example: "  tollctl tenant set t_acme --day 100k --rpm unlimited",
		Args:    args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := total(); err != nil {
				return err
			}
			body := map[string]any{}
			if err := f.into(cmd, body); err != nil {
				return err
			}
			if len(body) == 0 {
				return wrongUse("nothing to change: give a flag, see tollctl tenant set --help")
			}
			var t tenant
			raw, err := a.client.change(cmd.Context(), "PATCH", path("tenants", args[0]), a.opID, body, &t)
			return a.showTenant(raw, err, &t, fmt.Sprintf("Tenant %s is changed.", t.ID))
		},
	}
	cmd.Flags().SortFlags = false
	total = noTotal(cmd)
	f.add(cmd)
	opFlag(a, cmd)
	return cmd
}

func tenantStatus(a *app, verb, short, done string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " TENANT",
		Short: short,
		Args:  args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t tenant
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants", args[0], verb), a.opID, nil, &t)
			return a.say(raw, err, t.changed, fmt.Sprintf("Tenant %s %s.", t.ID, done))
		},
	}
	opFlag(a, cmd)
	return cmd
}

// say prints the node's answer as JSON, or one sentence.
func (a *app) say(raw json.RawMessage, err error, c changed, sentence string) error {
	if err != nil {
		return err
	}
	a.note(c)
	if a.format == "json" {
		return a.json(raw)
	}
	fmt.Fprintln(a.out, sentence)
	return nil
}

// showTenant prints a sentence and a tenant's properties.
func (a *app) showTenant(raw json.RawMessage, err error, t *tenant, sentence string) error {
	if err := a.say(raw, err, t.changed, sentence+"\n"); err != nil || a.format == "json" {
		return err
	}
	a.showTenantProps(t)
	return nil
}

func (a *app) showTenantProps(t *tenant) {
	props := newTable(nil)
	props.AppendRows([]table.Row{
		{"id", t.ID},
		{"name", t.Name},
		{"status", t.Status},
		{"total", credits(t.Total)},
		{"overage limit", grouped(t.OverageLimit)},
	})
	budgetRows(props, t.Budget)
	props.AppendRow(table.Row{"time zone", t.Timezone})
	if len(t.Policy) > 0 {
		props.AppendRow(table.Row{"policy", string(t.Policy)})
	}
	props.AppendRows([]table.Row{{"store", t.Store}, {"created", t.CreatedAt.Format(time.DateTime + " MST")}})
	a.show(props, "")
}

func tenantShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show TENANT",
		Short: "Show a tenant's limits and settings",
		Args:  args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t tenant
			raw, err := a.client.get(cmd.Context(), path("tenants", args[0]), nil, &t)
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.json(raw)
			}
			a.showTenantProps(&t)
			return nil
		},
	}
}

func tenantList(a *app) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tenants",
		Args:  args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(a, cmd, path("tenants"), "tenants", f, func(tenants []tenant) {
				t := newTable(table.Row{"ID", "NAME", "STATUS", "TOTAL", "OVERAGE", "PER DAY", "PER MONTH", "LIMITS"}, "TOTAL", "OVERAGE", "PER DAY", "PER MONTH")
				for _, each := range tenants {
					t.AppendRow(table.Row{
						each.ID, clip(each.Name), each.Status, credits(each.Total), grouped(each.OverageLimit),
						credits(each.Day), credits(each.Month), limitsLine(each.Limits),
					})
				}
				a.show(t, "There are no tenants. Create one: tollctl tenant create --total CREDITS")
			})
		},
	}
	f.add(cmd)
	return cmd
}

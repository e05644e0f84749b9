package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"tollgate/quota"
)

// apiKey is a key as the node shows it; total nil is unlimited, no models are every model.
type apiKey struct {
	ID     string   `json:"id"`
	Tenant string   `json:"tenant"`
	App    string   `json:"app"`
	Name   string   `json:"name"`
	Status string   `json:"status"`
	Models []string `json:"models"`
	Total  *int64   `json:"total"`
	quota.Budget
	changed
}

// issued is the answer that holds a secret, once.
type issued struct {
	apiKey
	Secret    string     `json:"secret"`
	Note      string     `json:"note"`
	OldExpire *time.Time `json:"old_secrets_expire_at"`
}

const anyModel = "any"

func keyCommands(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "key", Short: "API keys: what clients send"})
	cmd.AddCommand(
		keyCreate(a), keyList(a), keySet(a), keyRotate(a),
		keyStatus(a, "suspend", "POST", "Refuse a key until it is resumed", "is suspended; calls with it are refused"),
		keyStatus(a, "resume", "POST", "Let a suspended key work again", "works again"),
		keyStatus(a, "revoke", "DELETE", "End a key for ever", "is revoked for ever"),
	)
	return cmd
}

func models(list []string) string {
	if len(list) == 0 {
		return anyModel
	}
	return strings.Join(list, ", ")
}

func (a *app) showKey(each *apiKey) {
	props := newTable(nil)
	props.AppendRows([]table.Row{
		{"id", each.ID},
		{"tenant", each.Tenant},
		{"app", each.App},
		{"name", each.Name},
		{"status", each.Status},
		{"models", models(each.Models)},
		{"total", credits(each.Total)},
	})
	budgetRows(props, each.Budget)
	a.show(props, "")
}

// showIssued prints a secret where it can be copied from, and what it is for.
func (a *app) showIssued(raw json.RawMessage, err error, made *issued, sentence string) error {
	if err != nil {
		return err
	}
	a.note(made.changed)
	if a.format == "json" {
		return a.json(raw)
	}
	if made.Secret == "" {
		fmt.Fprintln(a.err, "tollctl:", made.Note)
	} else {
		fmt.Fprintf(a.out, "%s The secret is shown only now; clients send it as \"Authorization: Bearer …\":\n\n  %s\n\n", sentence, made.Secret)
	}
	if made.OldExpire != nil {
		fmt.Fprintf(a.out, "Secrets from before work until %s.\n\n", made.OldExpire.Local().Format(time.DateTime+" MST"))
	}
	a.showKey(&made.apiKey)
	return nil
}

// modelsFlag reads "gpt-4o*,o3", or any.
func modelsFlag(text string) []string {
	if text == anyModel || text == "" {
		return nil
	}
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

func keyCreate(a *app) *cobra.Command {
	var limits limitFlags
	var appID, name, total, allowed string
	cmd := &cobra.Command{
		Use:     "create TENANT --app APP",
		Short:   "Create an API key; its secret is printed once",
		Example: "  tollctl key create t_acme --app a_web --name staging --day 10k --models 'gpt-4o*,o3'",
		Args:    args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if appID == "" {
				return wrongUse("--app is missing: the app that the key belongs to, see tollctl app list %s", args[0])
			}
			n, err := amount("--total", total)
			if err != nil {
				return err
			}
			body := map[string]any{"app": appID, "name": name, "total": n, "models": modelsFlag(allowed)}
			if err := limits.into(cmd, body); err != nil {
				return err
			}
			var made issued
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants", args[0], "keys"), a.opID, body, &made)
			return a.showIssued(raw, err, &made, fmt.Sprintf("Key %s is created.", made.ID))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&appID, "app", "", "`APP` that the key belongs to")
	cmd.Flags().StringVar(&name, "name", "", "`NAME` for people")
	cmd.Flags().StringVar(&total, "total", unlimited, "`CREDITS` that the key may spend of the app's, or unlimited")
	limits.add(cmd)
	cmd.Flags().StringVar(&allowed, "models", anyModel, "`LIST` of models that it may call, with commas; * stands for any text")
	opFlag(a, cmd)
	return cmd
}

func keySet(a *app) *cobra.Command {
	var limits limitFlags
	var name, allowed string
	var total func() error
	cmd := &cobra.Command{
		Use:     "set TENANT KEY",
		Short:   "Change a key's limits; what was used stays as it is",
		Example: "  tollctl key set t_acme k_… --rpm 60 --models any",
		Args:    args("TENANT", "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := total(); err != nil {
				return err
			}
			body := map[string]any{}
			if cmd.Flags().Changed("name") {
				body["name"] = name
			}
			if cmd.Flags().Changed("models") {
				body["models"] = modelsFlag(allowed)
			}
			if err := limits.into(cmd, body); err != nil {
				return err
			}
			if len(body) == 0 {
				return wrongUse("nothing to change: give a flag, see tollctl key set --help")
			}
			var now apiKey
			raw, err := a.client.change(cmd.Context(), "PATCH", path("tenants", args[0], "keys", args[1]), a.opID, body, &now)
			if err := a.say(raw, err, now.changed, fmt.Sprintf("Key %s is changed.\n", now.ID)); err != nil || a.format == "json" {
				return err
			}
			a.showKey(&now)
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	total = noTotal(cmd)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` for people")
	limits.add(cmd)
	cmd.Flags().StringVar(&allowed, "models", "", "`LIST` of models that it may call, with commas; * stands for any text; any: every model")
	opFlag(a, cmd)
	return cmd
}

func keyRotate(a *app) *cobra.Command {
	var overlap string
	cmd := &cobra.Command{
		Use:     "rotate TENANT KEY",
		Short:   "Give a key a new secret; older ones work on for a while",
		Example: "  tollctl key rotate t_acme k_… --overlap 7d\n  tollctl key rotate t_acme k_… --overlap 0s     # the old secret was stolen",
		Args:    args("TENANT", "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var now issued
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants", args[0], "keys", args[1], "rotate"), a.opID, map[string]any{"overlap": overlap}, &now)
			return a.showIssued(raw, err, &now, fmt.Sprintf("Key %s has a new secret.", now.ID))
		},
	}
	cmd.Flags().StringVar(&overlap, "overlap", "24h", "how long older secrets go on working: 0s to 90d")
	opFlag(a, cmd)
	return cmd
}

func keyStatus(a *app, verb, method, short, done string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " TENANT KEY",
		Short: short,
		Args:  args("TENANT", "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			segments := []string{"tenants", args[0], "keys", args[1]}
			if method == "POST" {
				segments = append(segments, verb)
			}
			var now apiKey
			raw, err := a.client.change(cmd.Context(), method, path(segments...), a.opID, nil, &now)
			return a.say(raw, err, now.changed, fmt.Sprintf("Key %s %s.", now.ID, done))
		},
	}
	opFlag(a, cmd)
	return cmd
}

func keyList(a *app) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list TENANT",
		Short: "List a tenant's keys",
		Args:  args("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return list(a, cmd, path("tenants", args[0], "keys"), "keys", f, func(keys []apiKey) {
				t := newTable(table.Row{"ID", "APP", "NAME", "STATUS", "TOTAL", "PER DAY", "PER MONTH", "LIMITS", "MODELS"}, "TOTAL", "PER DAY", "PER MONTH")
				for _, each := range keys {
					t.AppendRow(table.Row{
						each.ID, each.App, clip(each.Name), each.Status, credits(each.Total), credits(each.Day), credits(each.Month),
						limitsLine(each.Limits), clip(models(each.Models)),
					})
				}
				a.show(t, "The tenant has no keys. Create one: tollctl key create "+args[0]+" --app APP")
			})
		},
	}
	f.add(cmd)
	return cmd
}

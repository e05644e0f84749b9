package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// adjustment is how a change of a total went.
type adjustment struct {
	State string `json:"state"` // applied | pending
	Scope string `json:"scope"`
	ID    string `json:"id"`
	Total *int64 `json:"total"`
	OpID  string `json:"op_id"`
}

// whose names the account in words.
func (j *adjustment) whose() string {
	if j.Scope == "org" {
		return "tenant " + j.ID
	}
	return j.Scope + " " + j.ID
}

func quotaCommands(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "quota", Short: "Totals: add credits, or cut them"})
	cmd.AddCommand(
		quotaAdjust(a, "add", "Add credits to a total", +1, "added"),
		quotaAdjust(a, "cut", "Cut a total, not below what is used and held", -1, "cut"),
	)
	return cmd
}

func quotaAdjust(a *app, verb, short string, sign int64, done string) *cobra.Command {
	var scope string
	cmd := &cobra.Command{
		Use:     verb + " TENANT CREDITS",
		Short:   short,
		Example: fmt.Sprintf("  tollctl quota %s t_acme 500k\n  tollctl quota %s t_acme 20k --scope app:a_web", verb, verb),
		Args:    args("TENANT", "CREDITS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, ok := parseCredits(args[1])
			if !ok || n == 0 {
				return wrongUse("%q is no amount to %s; write it as 500000, 500_000 or 500k", args[1], verb)
			}
			var result adjustment
			body := map[string]any{"scope": scope, "delta": sign * n}
			raw, err := a.client.change(cmd.Context(), "POST", path("tenants", args[0], "adjust"), a.opID, body, &result)
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.json(raw)
			}
			if result.State != "applied" {
				fmt.Fprintf(a.out, "Pending: Redis does not answer now. That %s credits are %s is recorded, and done as soon as Redis answers.\n", grouped(n), done)
				fmt.Fprintf(a.out, "See how it went: tollctl quota %s %s %s --scope %s --op-id %s\n", verb, args[0], args[1], scope, result.OpID)
				return nil
			}
			fmt.Fprintf(a.out, "%s credits %s: the total of %s is %s now.\n", grouped(n), done, result.whose(), credits(result.Total))
			return nil
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "org", "whose total: org, app:`ID` or key:ID")
	opFlag(a, cmd)
	return cmd
}

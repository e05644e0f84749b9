// Command tollctl is the operator's tool: tenants, apps, keys, totals, usage.
//
// It talks to a node's admin API and to nothing else, never to Redis or SQL
// behind the node's back. Every change carries an op_id, so that a command
// whose answer was lost can be repeated without a second effect.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=…
var version = ""

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// The exit codes.
const (
	exitRefused     = 1 // refused, or not found
	exitUse         = 2 // the command makes no sense as it stands
	exitUnreachable = 3 // no node answers, or it cannot do this now
)

// exitError is an error with the code it ends the process with.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// wrongUse is for commands that make no sense as they stand.
func wrongUse(format string, args ...any) error {
	return &exitError{exitUse, fmt.Sprintf(format, args...)}
}

const rootLong = `Administers a tollgate node: tenants and their apps and API keys, how much each
may spend, and what was spent.

A tenant has apps, an app has keys, and clients send a key. Each of the three
has a total that it may spend, and may have budgets per day and month, rates,
and a bound on calls at once; a call is charged to all three.

Amounts are in credits: 1000000, 1_000_000, 1M, 250k, 1.5G, or unlimited.
Rates are n, or rate:burst: --rpm 600, --tpm 90k:180k, or unlimited.`

const rootExample = `  A tenant, an app and a key; the last command prints the key that clients send:
    tollctl tenant create --id t_acme --name "Acme Ltd" --total 1M
    tollctl app create t_acme --id a_web
    tollctl key create t_acme --app a_web

  What was spent, and another half million to spend:
    tollctl usage t_acme
    tollctl quota add t_acme 500k

  Bounds for one key: 10000 credits a day, 60 requests a minute, 5 at once:
    tollctl key set t_acme k_… --day 10k --rpm 60 --concurrency 5`

const rootEnvironment = `{{if not .HasParent}}
Environment:
  TOLLGATE_ADMIN         the node's admin API (default http://127.0.0.1:9090)
  TOLLGATE_ADMIN_TOKEN   its token, if it has one
  TOLLGATE_ADMIN_WHO     who you are, for the node's admin log (default tollctl)

Exit codes: 0 done, 1 refused or not found, 2 wrong use, 3 no node answers or it cannot do this now.
{{end}}`

// app is what all commands share.
type app struct {
	client *client
	out    io.Writer
	err    io.Writer
	format string // table | json
	opID   string // --op-id
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "tollctl",
		Short:         "Administer a tollgate node",
		Long:          rootLong,
		Example:       rootExample,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.format != "table" && a.format != "json" {
				return wrongUse("-o %s: the output is table or json", a.format)
			}
			return a.client.check()
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{
		Use: "help [command]", Short: "Tell about a command", Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return wrongUse("there is no command %q; see tollctl --help", strings.Join(args, " "))
			}
			return found.Help()
		},
	})
	root.SetUsageTemplate(root.UsageTemplate() + rootEnvironment)
	root.PersistentFlags().StringVarP(&a.format, "output", "o", "table", "`FORMAT` to print: table or json")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return wrongUse("%s; see %s --help", err, cmd.CommandPath())
	})
	group(root)
	root.AddCommand(tenantCommands(a), appCommands(a), keyCommands(a), quotaCommands(a), usageCommand(a))
	return root
}

// group makes a command that is nothing without a subcommand.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		near := ""
		if list := cmd.SuggestionsFor(args[0]); len(list) > 0 {
			near = fmt.Sprintf(", did you mean %s?", list[0])
		}
		return wrongUse("there is no command %q%s See %s --help", cmd.CommandPath()+" "+args[0], orDot(near), cmd.CommandPath())
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

func orDot(text string) string {
	if text == "" {
		return "."
	}
	return text
}

// args wants exactly the named arguments.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		switch {
		case len(given) < len(names):
			return wrongUse("%s is missing: %s", names[len(given)], cmd.UseLine())
		case len(given) > len(names):
			return wrongUse("%q is one argument too many: %s", given[len(names)], cmd.UseLine())
		}
		return nil
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) int {
	a := &app{client: newClient(os.Getenv), out: stdout, err: stderr}
	defer a.client.close()
	root := newRoot(a)
	root.SetArgs(slices.Clone(arguments))
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "tollctl:", err)
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitUse // cobra's own: arguments and flags
}

// Command tollbench holds what tollgate is measured and tried with. Its
// subcommand upstream runs the fake LLM server of package bench/upstream.
//
// It never talks to a node's stores; it is a client and an upstream, no more.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
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

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tollbench",
		Short:         "Try and measure tollgate",
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUpstream())
	return root
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tollbench:", err)
		os.Exit(1)
	}
}

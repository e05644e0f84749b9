// Command tollgate runs one node: it reads the configuration, opens the ledger
// and the stores, and serves the data plane and the admin API until SIGTERM.
// The end-to-end tests of the whole product live beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"tollgate/edge/config"
	"tollgate/lua"
)

// version is set by the linker (make build).
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("tollgate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("config", "", "configuration `FILE` (YAML); without it the node starts on defaults")
	dry := flags.Bool("dryRun", false, "check the configuration, name every fault, and exit")
	show := flags.Bool("version", false, "print the version and exit")
	flags.Usage = func() {
		fmt.Fprint(stderr, "tollgate decides whether a tenant may spend, in front of LLM APIs.\n\nUsage: tollgate [-config FILE] [-dryRun] [-version]\n\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "tollgate: unexpected argument %q; see -help\n", flags.Arg(0))
		return 2
	}
	if *show {
		fmt.Fprintf(stdout, "tollgate %s (scripts %s, %s)\n", version, lua.ScriptsHash, goVersion())
		return 0
	}
	cfg, err := config.Load(*file)
	if err != nil {
		fmt.Fprintf(stderr, "tollgate: the configuration has faults:\n%v\n", err)
		return 1
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(stderr, "tollgate: warning: %s\n", w)
	}
	if *dry {
		fmt.Fprintln(stdout, "tollgate: the configuration is good")
		return 0
	}
	slog.SetDefault(newLogger(cfg, stderr))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, cfg); err != nil {
		slog.Error("the node stops", "error", err)
		return 1
	}
	return 0
}

func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "go"
}

func newLogger(cfg *config.Config, w io.Writer) *slog.Logger {
	level := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[cfg.Log.Level]
	opt := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

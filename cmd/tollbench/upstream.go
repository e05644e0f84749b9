package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tollgate/bench/upstream"
)

const upstreamLong = `Runs a fake LLM server with OpenAI's API:

  POST /v1/chat/completions   JSON, and a stream with "stream": true
  POST /v1/completions
  POST /v1/embeddings
  GET  /v1/models
  any path outside /v1/       a small JSON that costs no tokens

What a call costs is fixed: prompt_tokens is one per 4 bytes of text, rounded
up; completion_tokens is 16 for each choice, or less if max_tokens (or
max_completion_tokens, the larger) says so. A model named fake-p100-c20 costs
100 prompt and 20 completion tokens.

Every flag marked "knob" is how calls are answered. It can also be given by one
request, as header x-fake-<knob> or query field fake-<knob>; and for chosen
calls through the control API, which works when a proxy between strips headers:

  POST   /_fake/behave    {"model": "m", "path": "/v1/*", "skip": 0, "times": 3, "set": {"delay": "2s", "cut": 5}}
  GET    /_fake/behave    what is set, the rules, and what every knob means
  DELETE /_fake/behave    no rules
  POST   /_fake/release   lets calls go on that the hang knob keeps silent now
  GET    /_fake/log       what was served, one JSON line per call (?since=<seq>)
  GET    /_fake/totals    the sums; prompt, completion and total tokens are of whole answers
  GET    /_fake/wait      the sums as soon as ?begun=, ?ended=, ?silent=, ?idle=true hold; 504 after ?timeout=
  POST   /_fake/reset     empties log, sums and rules`

const upstreamExample = `  tollbench upstream --listen 127.0.0.1:8081 --delay 200ms --log served.jsonl
  curl 127.0.0.1:8081/v1/chat/completions -d '{"model":"fake-c20","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}'
  curl 127.0.0.1:8081/_fake/behave -d '{"times":1,"set":{"status":500}}'
  curl 127.0.0.1:8081/_fake/totals`

func newUpstream() *cobra.Command {
	var (
		listen  string
		grace   time.Duration
		options upstream.Options
	)
	cmd := &cobra.Command{
		Use:     "upstream",
		Short:   "Run the fake LLM server",
		Long:    upstreamLong,
		Example: upstreamExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := upstream.New(options)
			if err := s.Start(listen); err != nil {
				return errors.Join(err, s.Close())
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "fake upstream listens on %s\n", s.URL()); err != nil {
				return errors.Join(err, s.Close())
			}
			<-cmd.Context().Done()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), grace)
			defer cancel()
			err := s.Shutdown(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("calls were still running after --grace %v and were broken off", grace)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&listen, "listen", "127.0.0.1:8081", "address to listen on; port 0 takes a free one")
	f.DurationVar(&grace, "grace", 2*time.Second, "on SIGINT or SIGTERM, how long running calls may take to end")
	f.StringVar(&options.LogFile, "log", "", "append each log entry to this file too, as a JSON line")
	f.IntVar(&options.LogEntries, "log-entries", 0, "entries kept in memory, the oldest dropped first; 0 = 65536")
	f.StringSliceVar(&options.Models, "models", nil, "what GET /v1/models lists (default fake)")
	for _, k := range upstream.Knobs(&options.Behaviour) {
		flag := f.VarPF(k, k.Name, "", "knob: "+k.Help)
		if k.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	return cmd
}

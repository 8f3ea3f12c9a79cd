// Command lockstep fine-tunes mixture-of-experts language models on one machine and serves them with the same forward, bit for bit.
// This file is the command line: it parses, calls a package and prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/train"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root().ExecuteContext(ctx)
	if errors.Is(err, train.ErrInterrupted) {
		fmt.Fprintln(os.Stderr, "lockstep: interrupted; the state is saved: --resume continues")
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lockstep: "+err.Error())
		os.Exit(1)
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "lockstep",
		Short:         "Fine-tune MoE language models and serve them with the same forward, bit for bit",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(trainCommand())
	return c
}

// unknownCommand suggests the nearest command.
func unknownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see lockstep --help"
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean " + strings.Join(s, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q: %s", args[0], hint)
}

func trainCommand() *cobra.Command {
	var set []string
	var o train.Options
	var device string
	var printConfig bool
	c := &cobra.Command{
		Use:     "train SHAPE.toml",
		Short:   "Train a model by a shape",
		Example: "  lockstep train configs/countdown-sft.toml --set run.steps=100 --out /tmp/run",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if device != "" {
				set = append(set, "device.kind="+device)
			}
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			if printConfig {
				_, err := os.Stdout.Write(s.TOML())
				return err
			}
			o.Log = os.Stderr
			return train.Run(c.Context(), s, o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	f.StringVar(&o.Out, "out", "", "folder of the run (default: the shape's run.out, or the next free runs/NAME)")
	f.BoolVar(&o.Resume, "resume", false, "continue from the newest checkpoint, to the same bits")
	f.StringVar(&device, "device", "", "device to run on: cpu")
	f.BoolVar(&printConfig, "print-config", false, "print the resolved shape as TOML and exit")
	return c
}

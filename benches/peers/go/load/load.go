// Package load is the one load of scripts/bench-peers, for lock libraries in Go. `PROGRAM SECTION --url URL …` prints one
// line of JSON with numbers only; ../../README.md has the sections, which the programs in other languages share.
package load

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Client is a lock library, as its documentation says it should be used.
type Client interface {
	// Lock gives one for each goroutine.
	Lock(name string) Lock
}

// Lock is held and, where the library can, renewed from Lock to Unlock.
type Lock interface {
	Lock() error
	Unlock() error
}

// Args is the command line.
type Args struct {
	Section, URL, Name    string
	Tasks                 int
	Seconds, WarmUp, Work time.Duration
	First                 bool
}

// Run runs the section that the arguments name; modules are those whose versions tell what was measured.
func Run(connect func(Args) (Client, error), modules ...string) {
	args, err := parse(os.Args[1:])
	if err == nil && args.Section == "version" {
		fmt.Println(versions(modules))
		return
	}
	if err == nil {
		err = section(connect, args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(words []string) (Args, error) {
	if len(words) == 0 {
		return Args{}, fmt.Errorf("PROGRAM SECTION [--OPTION VALUE]…")
	}
	args := Args{Section: words[0]}
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.StringVar(&args.URL, "url", "", "the server, or several with commas")
	flags.StringVar(&args.Name, "name", "peers", "the lock")
	flags.IntVar(&args.Tasks, "tasks", 1, "goroutines")
	seconds := flags.Float64("seconds", 1, "that count")
	warmUp := flags.Float64("warm-up", 0, "seconds before it counts")
	work := flags.Int("work-ms", 0, "what the holder does with the lock")
	first := flags.String("first", "false", "which of two processes holds the lock first")
	err := flags.Parse(words[1:])
	args.Seconds, args.WarmUp = duration(*seconds), duration(*warmUp)
	args.Work, args.First = time.Duration(*work)*time.Millisecond, *first == "true"
	return args, err
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

func section(connect func(Args) (Client, error), args Args) error {
	client, err := connect(args)
	if err != nil {
		return err
	}
	var report map[string]any
	switch args.Section {
	case "own-names":
		report = ownNames(client, args)
	case "one-name":
		report = oneName(client, args)
	case "hand-over":
		report, err = inside(client, args)
	case "half":
		report, err = half(client, args)
	case "held":
		report, err = held(client, args)
	default:
		err = fmt.Errorf("no section %s", args.Section)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// As built in.
func versions(modules []string) string {
	info, _ := debug.ReadBuildInfo()
	all := []string{}
	for _, module := range modules {
		for _, dep := range info.Deps {
			if dep.Path == module {
				all = append(all, module[strings.Index(module, "/")+1:]+" "+strings.TrimPrefix(dep.Version, "v"))
			}
		}
	}
	return strings.Join(append(all, strings.Replace(info.GoVersion, "go", "Go ", 1)), ", ")
}

// Nanoseconds on a clock that all processes of the machine share.
func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

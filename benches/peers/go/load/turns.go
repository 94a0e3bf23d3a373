package load

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The time that counts, after the one to warm up.
type window struct{ opens, closes time.Time }

// What one goroutine did.
type tally struct {
	turns      int // that ended within the window
	allTurns   int
	errors     int
	violations int // locked while somebody else had it
	times      []int64
}

// Each goroutine has a name of its own.
func ownNames(client Client, args Args) map[string]any {
	return run(args, func(task int) (Lock, *atomic.Int32) {
		return client.Lock(fmt.Sprintf("%s-%d", args.Name, task)), new(atomic.Int32)
	})
}

// All want the same.
func oneName(client Client, args Args) map[string]any {
	holders := new(atomic.Int32)
	return run(args, func(int) (Lock, *atomic.Int32) { return client.Lock(args.Name), holders })
}

func run(args Args, lock func(int) (Lock, *atomic.Int32)) map[string]any {
	opens := time.Now().Add(args.WarmUp)
	open := window{opens, opens.Add(args.Seconds)}
	tallies := make([]tally, args.Tasks)
	var all sync.WaitGroup
	for task := range tallies {
		lock, holders := lock(task)
		all.Add(1)
		go func() {
			defer all.Done()
			tallies[task].take(lock, holders, open, args.Work)
		}()
	}
	all.Wait()
	return report(tallies, args)
}

func (t *tally) take(lock Lock, holders *atomic.Int32, open window, work time.Duration) {
	for time.Now().Before(open.closes) {
		begun := time.Now()
		alone, err := turn(lock, holders, work)
		if err != nil {
			t.failed(err)
		} else {
			t.count(open, begun, alone)
		}
	}
}

// Whether nobody else had it meanwhile.
func turn(lock Lock, holders *atomic.Int32, work time.Duration) (bool, error) {
	if err := lock.Lock(); err != nil {
		return false, err
	}
	alone := holders.Add(1) == 1
	spin(work)
	holders.Add(-1)
	return alone, lock.Unlock()
}

// Work that is equally long in every language; their timers are not.
func spin(work time.Duration) {
	for begun := time.Now(); time.Since(begun) < work; {
	}
}

func (t *tally) count(open window, begun time.Time, alone bool) {
	now := time.Now()
	t.allTurns++
	if !alone {
		t.violations++
	}
	if !now.Before(open.opens) && now.Before(open.closes) {
		t.turns++
		t.times = append(t.times, now.Sub(begun).Nanoseconds())
	}
}

func (t *tally) failed(err error) {
	if t.errors == 0 {
		fmt.Fprintln(os.Stderr, err)
	}
	t.errors++
	time.Sleep(time.Millisecond) // not the busy loop that an error at once would make
}

func report(tallies []tally, args Args) map[string]any {
	sum, least, most := tally{}, tallies[0].turns, 0
	for _, t := range tallies {
		sum.turns += t.turns
		sum.allTurns += t.allTurns
		sum.errors += t.errors
		sum.violations += t.violations
		sum.times = append(sum.times, t.times...)
		least, most = min(least, t.turns), max(most, t.turns)
	}
	slices.Sort(sum.times)
	return map[string]any{
		"turns": sum.turns, "all_turns": sum.allTurns, "errors": sum.errors, "violations": sum.violations,
		"least": least, "most": most, "seconds": args.Seconds.Seconds(),
		"p50": quantile(sum.times, 50), "p99": quantile(sum.times, 99),
	}
}

func quantile(sorted []int64, percent int) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)*percent/100]
}

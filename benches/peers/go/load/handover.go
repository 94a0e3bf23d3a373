package load

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// From Unlock() called to Lock() returned by one who was already waiting. Two sides take turns; neither asks again before
// the other has it, so that a waiter who is asleep when the lock is released is not passed over.

// To the other side: lines, in memory or through the standard streams.
type link struct {
	inbox <-chan string
	send  func(string)
}

// Both sides in this process.
func inside(client Client, args Args) (map[string]any, error) {
	toOne, toOther := make(chan string, 4), make(chan string, 4)
	one := link{toOne, func(line string) { toOther <- line }}
	other := link{toOther, func(line string) { toOne <- line }}
	type outcome struct {
		times []int64
		err   error
	}
	done := make(chan outcome, 2)
	start := func(link link, first bool) {
		times, err := side(client.Lock(args.Name), args, link, first)
		done <- outcome{times, err}
	}
	go start(one, true)
	go start(other, false)
	times := []int64{}
	for range 2 {
		side := <-done
		if side.err != nil {
			return nil, side.err
		}
		times = append(times, side.times...)
	}
	return map[string]any{"times": times}, nil
}

// One side; whoever started us carries the lines to the other.
func half(client Client, args Args) (map[string]any, error) {
	lines := make(chan string, 4)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	link := link{lines, func(line string) { fmt.Println(line) }}
	times, err := side(client.Lock(args.Name), args, link, args.First)
	return map[string]any{"times": times}, err
}

func side(lock Lock, args Args, link link, first bool) (times []int64, err error) {
	opens := time.Now().Add(args.WarmUp)
	times = []int64{}
	if first {
		if err := lock.Lock(); err != nil {
			return nil, err
		}
		link.send("had")
	} else if err := link.hear("had"); err != nil {
		return nil, err
	}
	for turn, last := 0, false; !last; turn++ {
		var took int64
		if (turn%2 == 0) == first {
			last, err = give(lock, link, turn, opens.Add(args.Seconds))
		} else {
			took, last, err = take(lock, link)
			if !time.Now().Before(opens) {
				times = append(times, took)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return times, nil
}

// The holder: waits until the other asks, and a while. Whether it was the last time.
func give(lock Lock, link link, turn int, closes time.Time) (bool, error) {
	if err := link.hear("ask"); err != nil {
		return false, err
	}
	time.Sleep(patience(turn))
	word := "left"
	if !time.Now().Before(closes) {
		word = "last"
	}
	left := clock()
	if err := lock.Unlock(); err != nil {
		return false, err
	}
	link.send(fmt.Sprintf("%s %d", word, left))
	return word == "last", link.hear("had")
}

// The waiter: how long it took from the release on, and whether it was the last time.
func take(lock Lock, link link) (int64, bool, error) {
	link.send("ask")
	if err := lock.Lock(); err != nil {
		return 0, false, err
	}
	had := clock()
	link.send("had")
	line := <-link.inbox
	word, at, _ := strings.Cut(line, " ")
	left, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("not a release: %s", line)
	}
	if word == "last" {
		err = lock.Unlock()
	}
	return had - left, word == "last", err
}

// From 3 to 103 ms, evenly spread: the release must not keep step with somebody's polling.
func patience(turn int) time.Duration {
	_, part := math.Modf(float64(turn) * 0.61803398875)
	return time.Duration(3_000_000 + part*100_000_000)
}

func (l link) hear(wanted string) error {
	if line := <-l.inbox; line != wanted {
		return fmt.Errorf("%q instead of %q", line, wanted)
	}
	return nil
}

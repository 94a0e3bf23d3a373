package load

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Memory for each held lock. Says `held` when all are, and keeps them for the seconds asked for, so that they are renewed
// meanwhile.
func held(client Client, args Args) (map[string]any, error) {
	warm := client.Lock("warm")
	if err := warm.Lock(); err != nil {
		return nil, err
	}
	if err := warm.Unlock(); err != nil {
		return nil, err
	}
	locks := make([]Lock, 0, args.Tasks)
	before, err := resident()
	for n := 0; err == nil && n < args.Tasks; n++ {
		lock := client.Lock(fmt.Sprintf("%s:%06d", args.Name, n))
		err = lock.Lock()
		locks = append(locks, lock)
	}
	if err != nil {
		return nil, err
	}
	fmt.Println("held")
	time.Sleep(args.Seconds)
	after, err := resident()
	runtime.KeepAlive(locks)
	return map[string]any{"bytes": (after - before) / args.Tasks}, err
}

// Resident memory of this process in bytes, without garbage.
func resident() (int, error) {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	return pages * os.Getpagesize(), err
}

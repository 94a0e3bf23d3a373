// redsync on go-redis, with a pool for each server and its default expiry, tries and delays.
package main

import (
	"errors"
	"strings"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"

	"example.invalid/peers/load"
)

type client struct{ rs *redsync.Redsync }

type lock struct{ mutex *redsync.Mutex }

func connect(args load.Args) (load.Client, error) {
	pools := []redis.Pool{}
	for _, url := range strings.Split(args.URL, ",") {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(goredislib.NewClient(options)))
	}
	return client{redsync.New(pools...)}, nil
}

func (c client) Lock(name string) load.Lock {
	return lock{c.rs.NewMutex(name)}
}

// Lock gives up after 32 tries, some five seconds; the documentation says to call it again.
func (l lock) Lock() error {
	for {
		err := l.mutex.Lock()
		var taken *redsync.ErrTaken
		if !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
			return err
		}
	}
}

func (l lock) Unlock() error {
	ok, err := l.mutex.Unlock()
	if err == nil && !ok {
		err = errors.New("it was not ours any more")
	}
	return err
}

func main() {
	load.Run(connect, "github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9")
}

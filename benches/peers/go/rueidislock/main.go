// rueidislock with what its documentation says for one server of Redis 7.0.5 or newer. Several addresses are those of a cluster, since it
// has no way to use servers that are independent: a lock is then two of three keys.
package main

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"example.invalid/peers/load"
)

type client struct{ locker rueidislock.Locker }

type lock struct {
	locker rueidislock.Locker
	name   string
	held   context.Context
	cancel context.CancelFunc
}

func connect(args load.Args) (load.Client, error) {
	urls := strings.Split(args.URL, ",")
	options, err := rueidis.ParseURL(urls[0])
	if err != nil {
		return nil, err
	}
	for _, url := range urls[1:] {
		more, err := rueidis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		options.InitAddress = append(options.InitAddress, more.InitAddress...)
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyMajority:    int32(len(urls)/2 + 1),
		NoLoopTracking: true,
	})
	return client{locker}, err
}

func (c client) Lock(name string) load.Lock {
	return &lock{locker: c.locker, name: name}
}

func (l *lock) Lock() (err error) {
	l.held, l.cancel, err = l.locker.WithContext(context.Background(), l.name)
	return err
}

func (l *lock) Unlock() (err error) {
	if l.held.Err() != nil {
		err = errors.New("it was not ours any more")
	}
	l.cancel()
	return err
}

func main() {
	load.Run(connect, "github.com/redis/rueidis")
}

// rueidislock with what its documentation says for one server of Redis 7.0.5 or newer.
package main

import (
	"context"
	"errors"

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
	options, err := rueidis.ParseURL(args.URL)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyMajority:    1,
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

// Members of a share group, with franz-go, as a process that a test starts: what they get and say is printed, one JSON
// object a line. ../test_franz_go.py reads it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// event is a delivered record and what is said of it, the size of a poll, or a failed acknowledgement.
type event struct {
	Member    int    `json:"member"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value,omitempty"`
	Count     int32  `json:"count,omitempty"`
	Ack       string `json:"ack,omitempty"`
	Polled    int    `json:"polled,omitempty"`
	Error     string `json:"error,omitempty"`
}

var (
	servers = flag.String("servers", "127.0.0.1:9092", "addresses of brokers")
	topic   = flag.String("topic", "jobs", "the topic")
	group   = flag.String("group", "workers", "the share group")
	mode    = flag.String("mode", "implicit", "implicit, explicit, mark, release, reject, renew or strict")
	members = flag.Int("members", 1, "how many members")
	until   = flag.Int64("until", 1, "how many records are to be done with")
	timeout = flag.Duration("timeout", time.Minute, "when to give up")
	renewIn = flag.Duration("renew-in", 3*time.Second, "for renew: the time before and after the renewal")

	printing sync.Mutex
	output   = json.NewEncoder(os.Stdout)
	done     atomic.Int64
)

func say(e event) {
	printing.Lock()
	defer printing.Unlock()
	if err := output.Encode(e); err != nil {
		panic(err)
	}
}

func main() {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if *mode == "admin" {
		if err := admin(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var running sync.WaitGroup
	for number := range *members {
		running.Go(func() {
			if err := work(ctx, number); err != nil {
				say(event{Member: number, Error: err.Error()})
			}
		})
	}
	running.Wait()
	if done.Load() < *until {
		fmt.Fprintf(os.Stderr, "%d of %d records were done with in %s\n", done.Load(), *until, *timeout)
		os.Exit(1)
	}
}

func work(ctx context.Context, number int) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*servers, ",")...),
		kgo.ConsumeTopics(*topic),
		kgo.ShareGroup(*group),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				say(event{Member: number, Error: err.Error()})
			}
		}),
	}
	if *mode == "strict" {
		options = append(options, kgo.ShareMaxRecords(7), kgo.ShareMaxRecordsStrict())
	} else if *members > 1 {
		options = append(options, kgo.ShareMaxRecords(10))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for done.Load() < *until && ctx.Err() == nil {
		if err := poll(ctx, client, number); err != nil {
			return err
		}
	}
	if *mode == "implicit" {
		// The next poll accepts what the last one gave; a close would release it.
		if err := poll(ctx, client, number); err != nil {
			return err
		}
	}
	flushing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return client.FlushAcks(flushing)
}

func poll(ctx context.Context, client *kgo.Client, number int) error {
	waiting, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	fetches := client.PollFetches(waiting)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
			return failed.Err
		}
	}
	records := fetches.Records()
	if len(records) == 0 {
		return nil
	}
	say(event{Member: number, Polled: len(records)})
	if *mode == "renew" {
		if err := renew(ctx, client, records); err != nil {
			return err
		}
	}
	for _, record := range records {
		status := decide(record)
		say(event{number, record.Partition, record.Offset, string(record.Value), record.DeliveryCount(), status.String(), 0, ""})
		switch *mode {
		case "implicit", "mark":
		default:
			record.Ack(status)
		}
		if status != kgo.AckRelease {
			done.Add(1)
		}
	}
	switch *mode {
	case "mark":
		client.MarkAcks(kgo.AckAccept)
	case "implicit":
		return nil
	}
	return client.FlushAcks(ctx)
}

func decide(record *kgo.Record) kgo.AckStatus {
	number, _ := strconv.Atoi(string(record.Value))
	switch {
	case *mode == "release" && record.DeliveryCount() == 1:
		return kgo.AckRelease
	case *mode == "reject" && number%3 == 0:
		return kgo.AckReject
	}
	return kgo.AckAccept
}

// renew keeps the records for longer than their locks last.
func renew(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	time.Sleep(*renewIn)
	client.MarkAcks(kgo.AckRenew, records...)
	if err := client.FlushAcks(ctx); err != nil {
		return err
	}
	time.Sleep(*renewIn)
	return nil
}

// A server and a client of rsocket-go with the interactions that the conformance cases need.
// "go build -mod=mod -o peer ." builds it.
//
//	peer server [PORT]   prints "listening URI" and serves until it is ended
//	peer client          is started by rsocket-trio conformance --role client: RSOCKET_URI says where it connects, and
//	                     RSOCKET_ASKS what it asks then
//
// Both resume sessions if RSOCKET_WITH has "resume", and the server grants leases if it has "leases".
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rsocket/rsocket-go"
	"github.com/rsocket/rsocket-go/lease"
	"github.com/rsocket/rsocket-go/payload"
	"github.com/rsocket/rsocket-go/rx"
	"github.com/rsocket/rsocket-go/rx/flux"
	"github.com/rsocket/rsocket-go/rx/mono"
)

const (
	host   = "127.0.0.1"
	port   = "7878"
	octets = "application/octet-stream"
	// How long a session waits to be resumed.
	session = 2 * time.Minute
	// Items that a stream or channel of the client asks for, once.
	credit = 2
)

// What it takes part in beside the interactions: resume or leases.
var with = map[string]bool{}

// The interactions, none of which needs a route.
func responder() rsocket.RSocket {
	return rsocket.NewAbstractSocket(
		rsocket.RequestResponse(echo),
		rsocket.RequestStream(count),
		rsocket.RequestChannel(talk),
		rsocket.FireAndForget(func(payload.Payload) {}),
		rsocket.MetadataPush(func(payload.Payload) {}),
	)
}

// Answers with the request; never answers one that says "silent".
func echo(request payload.Payload) mono.Mono {
	if request.DataUTF8() == "silent" {
		return mono.Create(func(context.Context, mono.Sink) {})
	}
	return mono.Just(payload.Clone(request))
}

// Counts, as far as the data says.
func count(request payload.Payload) flux.Flux {
	end := math.MaxInt
	if data := request.DataUTF8(); data != "" {
		var err error
		if end, err = strconv.Atoi(data); err != nil {
			return flux.Error(err)
		}
	}
	return flux.Create(func(_ context.Context, items flux.Sink) {
		// A stream that is cancelled closes the queue behind the sink, and the next item panics.
		defer func() { _ = recover() }()
		for number := 0; number < end; number++ {
			items.Next(payload.New([]byte(strconv.Itoa(number)), nil))
		}
		items.Complete()
	})
}

// Sends back each item, and hands the credit for them on.
func talk(items flux.Flux) flux.Flux {
	return items.Map(func(item payload.Payload) (payload.Payload, error) {
		return payload.Clone(item), nil
	})
}

func serve(port string) error {
	// The library does not tell the port that the system chose for 0.
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	listener.Close()
	builder := rsocket.Receive()
	if with["resume"] {
		builder = builder.Resume(rsocket.WithServerResumeSessionDuration(session))
	}
	if with["leases"] {
		// 3 requests for 2 seconds, almost at once, and that again every 3 seconds.
		leases, err := lease.NewSimpleFactory(3*time.Second, 2*time.Second, time.Millisecond, 3)
		if err != nil {
			return err
		}
		builder = builder.Lease(leases)
	}
	return builder.
		OnStart(func() { fmt.Printf("listening tcp://%s\n", address) }).
		Acceptor(func(context.Context, payload.SetupPayload, rsocket.CloseableRSocket) (rsocket.RSocket, error) {
			return responder(), nil
		}).
		Transport(rsocket.TCPServer().SetAddr(address).Build()).
		Serve(context.Background())
}

func connect(uri string) (rsocket.Client, error) {
	parsed, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	builder := rsocket.Connect()
	if with["resume"] {
		builder = builder.Resume()
	}
	return builder.
		DataMimeType(octets).
		MetadataMimeType(octets).
		KeepAlive(2*time.Second, 8*time.Second, 1).
		SetupPayload(payload.Empty()).
		Acceptor(func(context.Context, rsocket.RSocket) rsocket.RSocket { return responder() }).
		Transport(rsocket.TCPClient().SetAddr(parsed.Host).Build()).
		Start(context.Background())
}

// Makes the request, and one more with what answered it.
func ask(peer rsocket.RSocket, asks string) {
	again := func(answer payload.Payload) {
		peer.RequestResponse(payload.New(answer.Data(), nil)).Subscribe(context.Background())
	}
	few := rx.OnSubscribe(func(_ context.Context, items rx.Subscription) { items.Request(credit) })
	switch asks {
	case "request":
		peer.RequestResponse(payload.New([]byte("q"), nil)).Subscribe(context.Background(), rx.OnNext(func(answer payload.Payload) error {
			again(payload.Clone(answer))
			return nil
		}))
	case "stream":
		var last payload.Payload
		peer.RequestStream(payload.New([]byte("s"), nil)).Subscribe(context.Background(), few,
			rx.OnNext(func(item payload.Payload) error {
				last = payload.Clone(item)
				return nil
			}),
			rx.OnComplete(func() {
				if last != nil {
					again(last)
				}
			}))
	case "channel":
		out := flux.CreateProcessor()
		go out.Next(payload.New([]byte("c"), nil))
		peer.RequestChannel(out).Subscribe(context.Background(), few, rx.OnNext(func(item payload.Payload) error {
			out.Next(payload.Clone(item))
			return nil
		}))
	}
}

func main() {
	for _, option := range strings.Split(os.Getenv("RSOCKET_WITH"), ",") {
		with[option] = true
	}
	if len(os.Args) > 1 && os.Args[1] == "client" {
		peer, err := connect(os.Getenv("RSOCKET_URI"))
		if err != nil {
			log.Fatal(err)
		}
		ask(peer, os.Getenv("RSOCKET_ASKS"))
		select {}
	}
	chosen := port
	if len(os.Args) > 2 {
		chosen = os.Args[2]
	}
	log.Fatal(serve(chosen))
}

// The server of the workloads, with rsocket-go. Prints its port, serves until its standard input ends.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/jjeffcaii/reactor-go"
	source "github.com/jjeffcaii/reactor-go/flux"
	"github.com/rsocket/rsocket-go"
	"github.com/rsocket/rsocket-go/payload"
	"github.com/rsocket/rsocket-go/rx/flux"
	"github.com/rsocket/rsocket-go/rx/mono"
)

func echo(request payload.Payload) mono.Mono {
	return mono.Just(payload.Clone(request))
}

func items(request payload.Payload) flux.Flux {
	var count, size int
	if _, err := fmt.Sscanf(request.DataUTF8(), "%d %d", &count, &size); err != nil {
		return flux.Error(err)
	}
	item := make([]byte, size)
	// A sink of flux.Create loses a wake-up now and then, and its stream stands still.
	return flux.Raw(source.Range(0, count).Map(func(reactor.Any) (reactor.Any, error) {
		return payload.New(item, nil), nil
	}))
}

func main() {
	// The library does not tell the port that the system chose for 0.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	listener.Close()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	responder := rsocket.NewAbstractSocket(rsocket.RequestResponse(echo), rsocket.RequestStream(items))
	err = rsocket.Receive().
		OnStart(func() { fmt.Println(address.Port) }).
		Acceptor(func(context.Context, payload.SetupPayload, rsocket.CloseableRSocket) (rsocket.RSocket, error) {
			return responder, nil
		}).
		Transport(rsocket.TCPServer().SetAddr(address.String()).Build()).
		Serve(context.Background())
	log.Fatal(err)
}

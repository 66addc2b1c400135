//! A server and a client of rsocket-rust with the interactions that the conformance cases need.
//! "cargo build --release" builds it.
//!
//!     peer server [PORT]   prints "listening URI" and serves until it is ended
//!     peer client          is started by rsocket-trio conformance --role client: RSOCKET_URI says where it connects,
//!                          and RSOCKET_ASKS what it asks then

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use futures::StreamExt;
use rsocket_rust::prelude::*;
use rsocket_rust::{async_trait, stream, Client, Result};
use rsocket_rust_transport_tcp::{TcpClientTransport, TcpServerTransport};
use tokio::sync::mpsc;

const HOST: &str = "127.0.0.1";
const PORT: &str = "7878";
const OCTETS: &str = "application/octet-stream";
/// Items that are sent without a pause. The library takes no account of credit, and queues without a limit.
const BATCH: u64 = 64;
const PAUSE: Duration = Duration::from_millis(10);

/// The interactions, none of which needs a route.
struct Responder;

#[async_trait]
impl RSocket for Responder {
    async fn metadata_push(&self, _: Payload) -> Result<()> {
        Ok(())
    }

    async fn fire_and_forget(&self, _: Payload) -> Result<()> {
        Ok(())
    }

    /// Answers with the request; never answers one that says "silent".
    async fn request_response(&self, request: Payload) -> Result<Option<Payload>> {
        if request.data_utf8() == Some("silent") {
            futures::future::pending::<()>().await;
        }
        Ok(Some(request))
    }

    /// Counts, as far as the data says.
    fn request_stream(&self, request: Payload) -> Flux<Result<Payload>> {
        let end = match request.data_utf8() {
            None | Some("") => Ok(u64::MAX),
            Some(text) => text.parse::<u64>(),
        };
        Box::pin(stream! {
            match end {
                Err(error) => yield Err(error.into()),
                Ok(end) => {
                    for number in 0..end {
                        if number % BATCH == BATCH - 1 {
                            tokio::time::sleep(PAUSE).await;
                        }
                        yield Ok(Payload::builder().set_data_utf8(&number.to_string()).build());
                    }
                }
            }
        })
    }

    /// Sends back each item.
    fn request_channel(&self, items: Flux<Result<Payload>>) -> Flux<Result<Payload>> {
        items
    }
}

async fn serve(port: &str) -> Result<()> {
    // The library does not tell the port that the system chose for 0.
    let address = TcpListener::bind(format!("{HOST}:{port}"))?.local_addr()?;
    RSocketFactory::receive()
        .transport(TcpServerTransport::from(address))
        .acceptor(Box::new(|_, _| Ok(Box::new(Responder))))
        .on_start(Box::new(move || println!("listening tcp://{address}")))
        .serve()
        .await
}

async fn connect(uri: &str) -> Result<Client> {
    let address: SocketAddr = uri.trim_start_matches("tcp://").parse()?;
    RSocketFactory::connect()
        .transport(TcpClientTransport::from(address))
        .acceptor(Box::new(|| Box::new(Responder)))
        .mime_type(OCTETS, OCTETS)
        .keepalive(Duration::from_secs(2), Duration::from_secs(8), 1)
        .start()
        .await
}

/// Makes the request, and one more with what answered it.
async fn ask(peer: &Client, asks: &str) {
    let text = |data| Payload::builder().set_data_utf8(data).build();
    let mut last = None;
    match asks {
        "request" => last = peer.request_response(text("q")).await.ok().flatten(),
        "stream" => {
            let mut items = peer.request_stream(text("s"));
            while let Some(Ok(item)) = items.next().await {
                last = Some(item);
            }
        }
        "channel" => {
            let (out, mut waiting) = mpsc::unbounded_channel();
            let _ = out.send(Ok(text("c")));
            let mut items = peer.request_channel(Box::pin(stream! {
                while let Some(item) = waiting.recv().await {
                    yield item;
                }
            }));
            while let Some(Ok(item)) = items.next().await {
                let _ = out.send(Ok(Payload::new(item.data().cloned(), None)));
            }
        }
        _ => {}
    }
    if let Some(answer) = last {
        let _ = peer.request_response(Payload::new(answer.data().cloned(), None)).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).map(String::as_str) == Some("client") {
        let peer = connect(&std::env::var("RSOCKET_URI")?).await?;
        ask(&peer, &std::env::var("RSOCKET_ASKS")?).await;
        futures::future::pending::<()>().await;
    }
    serve(words.get(2).map_or(PORT, String::as_str)).await
}

"""TLS: the server shows its certificate, asks for the client's, and tells the client who it is.

python examples/tls.py CA.pem SERVER.pem CLIENT.pem   each of the last two holds a key and its certificates
python examples/tls.py                                makes its own, for which trustme must be installed
"""

from __future__ import annotations

import ssl
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from rsocket_trio import Payload, Responder, current_connection, open_connection, serve

responder = Responder()


@responder.request_response("whoami")
def whoami(request: Payload) -> str:
    certificate = current_connection().setup.certificate
    assert certificate is not None  # or the handshake would have failed
    return str(certificate["subjectAltName"][0][1])


async def run(files: Sequence[str]) -> None:
    ca, server, client = files
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    server_side.load_cert_chain(server)
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=ca)
    client_side.load_cert_chain(client)
    async with trio.open_nursery() as nursery:
        uris = ["tls://localhost:0", "wss://localhost:0/rsocket"]
        for uri in await nursery.start(partial(serve, responder, uris, ssl_context=server_side)):
            async with open_connection(uri, ssl_context=client_side) as connection:
                print(f"{uri.partition(':')[0]}: you are {(await connection.request_response(route='whoami')).text}")
        nursery.cancel_scope.cancel()


def make_certificates(folder: Path) -> Sequence[str]:
    import trustme

    ca = trustme.CA()
    names = {"server.pem": "localhost", "client.pem": "ada@example.org"}
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for file, name in names.items():
        ca.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(folder / file)
    return [str(folder / file) for file in ("ca.pem", *names)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, sys.argv[1:] or make_certificates(Path(folder)))


if __name__ == "__main__":
    main()

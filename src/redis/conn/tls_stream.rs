//! The encryption of one connection. rustls does no input and output of its own, so whoever has bytes encrypts and writes them.

use std::{
    io::{self, ErrorKind, Read, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Buf, BytesMut};
use rustls::{ClientConnection, pki_types::ServerName};

use super::{
    socket::{Outgoing, Socket, closed, for_now, not_open},
    target::Target,
};
use crate::{redis::fault::Fault, redis::url::Address, tls::TlsContext};

pub(super) struct Session(Mutex<ClientConnection>);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session(..)")
    }
}

/// Writes what the system takes.
trait TryWrite {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl TryWrite for Socket {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Socket::try_write(self, bytes)
    }
}

impl TryWrite for Outgoing {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Outgoing::try_write(self, bytes)
    }
}

/// A socket as rustls wants it.
struct Bytes<'a, S>(&'a S);

impl Read for Bytes<'_, Socket> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl<S: TryWrite> Write for Bytes<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    /// Agrees with the server, and checks its certificate.
    pub(super) async fn begin(socket: &Socket, tls: &TlsContext, target: &Target) -> Result<Session, Fault> {
        let settings = tls.config().map_err(|why| Fault::not_sent(&why))?;
        let name = tls.server_name.clone().unwrap_or_else(|| match &target.address {
            Address::Tcp(host, _) => host.to_string(),
            Address::Unix(path) => path.display().to_string(),
        });
        let name = ServerName::try_from(name).map_err(|error| Fault::NotSent(Arc::new(error)))?;
        let connection = ClientConnection::new(settings, name).map_err(|error| Fault::NotSent(Arc::new(error)))?;
        let session = Session(Mutex::new(connection));
        session.shake_hands(socket).await.map_err(not_open)?;
        Ok(session)
    }

    async fn shake_hands(&self, socket: &Socket) -> io::Result<()> {
        while self.connection().is_handshaking() {
            while !flush(&mut self.connection(), socket)? {
                socket.writable().await?;
            }
            if self.connection().is_handshaking() {
                socket.readable().await?;
                receive(&mut self.connection(), socket)?;
            }
        }
        Ok(())
    }

    /// Moves what has arrived to `plain`, as far as whole messages are there.
    pub(super) fn decrypt(
        &self,
        outgoing: &Outgoing,
        encrypted: &mut BytesMut,
        plain: &mut BytesMut,
    ) -> io::Result<()> {
        let mut connection = self.connection();
        while !encrypted.is_empty() {
            let taken = connection.read_tls(&mut &encrypted[..])?;
            encrypted.advance(taken);
            process(&mut connection, outgoing)?;
            read_plain(&mut connection, plain)?;
        }
        flush(&mut connection, outgoing)?; // an answer of the protocol itself; if it does not fit now, the next write sends it
        Ok(())
    }

    /// As `Stream::write`.
    pub(super) fn write(&self, outgoing: &Outgoing, out: &mut BytesMut) -> io::Result<bool> {
        let mut connection = self.connection();
        while flush(&mut connection, outgoing)? {
            if out.is_empty() {
                return Ok(true);
            }
            let taken = connection.writer().write(out)?;
            out.advance(taken);
        }
        Ok(false)
    }

    fn connection(&self) -> MutexGuard<'_, ClientConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn process(connection: &mut ClientConnection, outgoing: &impl TryWrite) -> io::Result<()> {
    connection.process_new_packets().map(drop).map_err(|error| {
        let _ = flush(connection, outgoing); // tells the server why
        io::Error::new(ErrorKind::InvalidData, error)
    })
}

fn read_plain(connection: &mut ClientConnection, plain: &mut BytesMut) -> io::Result<()> {
    let mut part = [0; 4 << 10];
    loop {
        match for_now(connection.reader().read(&mut part))? {
            0 => return Ok(()), // no more for now, or at all: then the socket says so
            length => plain.extend_from_slice(&part[..length]),
        }
    }
}

/// What has arrived while both sides shake hands.
fn receive(connection: &mut ClientConnection, socket: &Socket) -> io::Result<()> {
    match connection.read_tls(&mut Bytes(socket)) {
        Ok(0) => Err(closed()),
        Ok(_) => process(connection, socket),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// True if all that was encrypted is written.
fn flush(connection: &mut ClientConnection, socket: &impl TryWrite) -> io::Result<bool> {
    while connection.wants_write() {
        if for_now(connection.write_tls(&mut Bytes(socket)))? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

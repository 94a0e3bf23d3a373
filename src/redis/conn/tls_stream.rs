//! The encryption of one connection. rustls does no input and output of its own, so whoever has bytes encrypts and writes them.

use std::{
    io::{self, ErrorKind, Read, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Buf, BytesMut};
use rustls::{ClientConnection, pki_types::ServerName};

use super::{
    socket::{READ, Socket, closed, for_now, not_open},
    target::Target,
};
use crate::{redis::fault::Fault, redis::url::Address, tls::TlsContext};

pub(super) struct Session(Mutex<ClientConnection>);

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session(..)")
    }
}

/// A socket as rustls wants it.
struct Bytes<'a>(&'a Socket);

impl Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Bytes<'_> {
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
                if receive(&mut self.connection(), socket)? == Received::End {
                    return Err(closed());
                }
            }
        }
        Ok(())
    }

    /// As `Stream::read`.
    pub(super) fn read(&self, socket: &Socket, into: &mut BytesMut) -> io::Result<usize> {
        let mut connection = self.connection();
        let received = receive(&mut connection, socket)?;
        flush(&mut connection, socket)?; // an answer of the protocol itself; if it does not fit now, the next write sends it
        let before = into.len();
        let mut part = [0; READ];
        loop {
            match for_now(connection.reader().read(&mut part))? {
                0 => break,
                length => into.extend_from_slice(&part[..length]),
            }
        }
        match into.len() - before {
            0 if received == Received::End => Err(closed()),
            length => Ok(length),
        }
    }

    /// As `Stream::write`.
    pub(super) fn write(&self, socket: &Socket, out: &mut BytesMut) -> io::Result<bool> {
        let mut connection = self.connection();
        while flush(&mut connection, socket)? {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    /// All that was there.
    Some,
    /// The server sends nothing more.
    End,
}

/// Decrypts what has arrived.
fn receive(connection: &mut ClientConnection, socket: &Socket) -> io::Result<Received> {
    match connection.read_tls(&mut Bytes(socket)) {
        Ok(0) => return Ok(Received::End),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Received::Some),
        Err(error) => return Err(error),
    }
    connection.process_new_packets().map_err(|error| {
        let _ = flush(connection, socket); // tells the server why
        io::Error::new(ErrorKind::InvalidData, error)
    })?;
    Ok(Received::Some)
}

/// True if all that was encrypted is written.
fn flush(connection: &mut ClientConnection, socket: &Socket) -> io::Result<bool> {
    while connection.wants_write() {
        if for_now(connection.write_tls(&mut Bytes(socket)))? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

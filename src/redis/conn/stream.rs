//! The bytes of one connection, encrypted or not. Nothing here waits for a reply.

use std::io;

use bytes::{Buf, BytesMut};

#[cfg(feature = "tls")]
use super::tls_stream::Session;
use super::{
    socket::{READ, Socket, closed, for_now, not_open},
    target::Target,
};
use crate::redis::fault::Fault;

/// An open connection. Any thread may write; one task reads.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    #[cfg(feature = "tls")]
    session: Option<Session>,
}

impl Stream {
    /// Connects, and agrees on the encryption.
    pub(super) async fn open(target: &Target) -> Result<Stream, Fault> {
        let socket = Socket::open(target).await.map_err(not_open)?;
        #[cfg(feature = "tls")]
        let session = match &target.tls {
            Some(tls) => Some(Session::begin(&socket, tls, target).await?),
            None => None,
        };
        Ok(Stream {
            socket,
            #[cfg(feature = "tls")]
            session,
        })
    }

    /// Resolves when something has arrived, or the connection has ended.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Takes what has arrived. Zero: there is nothing, for now. An error at the end of the connection.
    pub(super) fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        into.reserve(READ);
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return session.read(&self.socket, into);
        }
        for_now(self.socket.try_read_buf(into).and_then(|length| if length == 0 { Err(closed()) } else { Ok(length) }))
    }

    /// Writes as much of `out` as the system takes. True if that is all.
    pub(super) fn write(&self, out: &mut BytesMut) -> io::Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return session.write(&self.socket, out);
        }
        while !out.is_empty() {
            match for_now(self.socket.try_write(out))? {
                0 => return Ok(false),
                length => out.advance(length),
            }
        }
        Ok(true)
    }
}

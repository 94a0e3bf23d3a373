//! The bytes of one connection, encrypted or not. Nothing here waits for a reply.

use std::io;

use bytes::{Buf, BytesMut};

#[cfg(feature = "tls")]
use super::tls_stream::Session;
use super::{
    socket::{Incoming, Outgoing, Socket, for_now, not_open},
    target::Target,
};
use crate::redis::fault::Fault;

/// What arrives on an open connection. One task reads.
#[derive(Debug)]
pub(super) struct Reader {
    incoming: Incoming,
    /// What cannot be decrypted yet.
    #[cfg(feature = "tls")]
    encrypted: BytesMut,
}

impl Reader {
    /// Adds what arrives to `plain`. An error at the end of the connection. Nothing is lost if the future is dropped.
    pub(super) async fn read(&mut self, stream: &Stream, plain: &mut BytesMut) -> io::Result<()> {
        match stream {
            #[cfg(feature = "tls")]
            Stream { session: Some(session), outgoing } => {
                self.incoming.read(&mut self.encrypted).await?;
                session.decrypt(outgoing, &mut self.encrypted, plain)
            }
            _ => self.incoming.read(plain).await,
        }
    }
}

/// Where to write on an open connection. Any thread may.
#[derive(Debug)]
pub(super) struct Stream {
    outgoing: Outgoing,
    #[cfg(feature = "tls")]
    session: Option<Session>,
}

impl Stream {
    /// Connects, and agrees on the encryption.
    pub(super) async fn open(target: &Target) -> Result<(Reader, Stream), Fault> {
        let socket = Socket::open(target).await.map_err(not_open)?;
        #[cfg(feature = "tls")]
        let session = match &target.tls {
            Some(tls) => Some(Session::begin(&socket, tls, target).await?),
            None => None,
        };
        let (incoming, outgoing) = socket.split();
        let stream = Stream {
            outgoing,
            #[cfg(feature = "tls")]
            session,
        };
        let reader = Reader {
            incoming,
            #[cfg(feature = "tls")]
            encrypted: BytesMut::new(),
        };
        Ok((reader, stream))
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.outgoing.writable().await
    }

    /// Writes as much of `out` as the system takes. True if that is all.
    pub(super) fn write(&self, out: &mut BytesMut) -> io::Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return session.write(&self.outgoing, out);
        }
        while !out.is_empty() {
            match for_now(self.outgoing.try_write(out))? {
                0 => return Ok(false),
                length => out.advance(length),
            }
        }
        Ok(true)
    }
}

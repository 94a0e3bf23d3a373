//! A socket: TCP or unix.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use bytes::BytesMut;
#[cfg(unix)]
use tokio::net::{UnixStream, unix};
use tokio::{
    io::AsyncReadExt,
    net::{TcpStream, tcp},
};

use super::target::Target;
use crate::{
    contained::caught,
    redis::{fault::Fault, url::Address},
};

/// The room for what arrives at once.
const READ: usize = 16 << 10;

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    pub(super) async fn open(target: &Target) -> io::Result<Socket> {
        match &target.address {
            Address::Tcp(host, _) => {
                let unknown = || io::Error::other(format!("no address was found for {host}"));
                Socket::tcp(target.found.ok_or_else(unknown)?).await
            }
            Address::Unix(path) => Socket::unix(path).await,
        }
    }

    async fn tcp(address: SocketAddr) -> io::Result<Socket> {
        // It panics if the runtime has no input and output.
        let connected = caught(TcpStream::connect(address)).await;
        let stream = connected.unwrap_or_else(|| {
            Err(io::Error::other("the runtime has no connections: call enable_io on its builder"))
        })?;
        stream.set_nodelay(true)?;
        // Nobody listens at a port of this machine, and the system has chosen the same port for the other end.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(io::Error::new(ErrorKind::ConnectionRefused, "the connection led to itself"));
        }
        Ok(Socket::Tcp(stream))
    }

    #[cfg(unix)]
    async fn unix(path: &Path) -> io::Result<Socket> {
        Ok(Socket::Unix(UnixStream::connect(path).await?))
    }

    #[cfg(not(unix))]
    async fn unix(_path: &Path) -> io::Result<Socket> {
        Err(io::Error::new(ErrorKind::Unsupported, "this system has no unix sockets"))
    }

    #[cfg(feature = "tls")]
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.readable().await,
            #[cfg(unix)]
            Socket::Unix(stream) => stream.readable().await,
        }
    }

    #[cfg(feature = "tls")]
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.writable().await,
            #[cfg(unix)]
            Socket::Unix(stream) => stream.writable().await,
        }
    }

    #[cfg(feature = "tls")]
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.try_write(bytes),
        }
    }

    #[cfg(feature = "tls")]
    pub(super) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_read(into),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.try_read(into),
        }
    }

    /// For one task that reads, and any thread that writes.
    pub(super) fn split(self) -> (Incoming, Outgoing) {
        match self {
            Socket::Tcp(stream) => {
                let (incoming, outgoing) = stream.into_split();
                (Incoming::Tcp(incoming), Outgoing::Tcp(outgoing))
            }
            #[cfg(unix)]
            Socket::Unix(stream) => {
                let (incoming, outgoing) = stream.into_split();
                (Incoming::Unix(incoming), Outgoing::Unix(outgoing))
            }
        }
    }
}

/// What arrives.
#[derive(Debug)]
pub(super) enum Incoming {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
}

impl Incoming {
    /// Adds what arrives. An error at the end of the connection. Nothing is lost if the future is dropped.
    pub(super) async fn read(&mut self, into: &mut BytesMut) -> io::Result<()> {
        into.reserve(READ);
        let length = match self {
            Incoming::Tcp(half) => half.read_buf(into).await?,
            #[cfg(unix)]
            Incoming::Unix(half) => half.read_buf(into).await?,
        };
        if length == 0 { Err(closed()) } else { Ok(()) }
    }
}

#[derive(Debug)]
pub(super) enum Outgoing {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

impl Outgoing {
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Outgoing::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Outgoing::Unix(half) => half.writable().await,
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Outgoing::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Outgoing::Unix(half) => half.try_write(bytes),
        }
    }
}

/// Zero if the operation would have to wait.
pub(super) fn for_now(done: io::Result<usize>) -> io::Result<usize> {
    match done {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        done => done,
    }
}

/// The other end has closed the connection.
pub(super) fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
}

pub(super) fn not_open(error: io::Error) -> Fault {
    Fault::NotSent(Arc::new(error))
}

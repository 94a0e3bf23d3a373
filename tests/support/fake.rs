//! A server whose answers a test chooses. A request that the test does not answer goes to a real server, so that locks work.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use bytes::BytesMut;
use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};

use super::server::{Server, free_port};

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    /// It answers this, in RESP2.
    Reply(Vec<u8>),
    /// It answers as the real server behind it does.
    Pass,
    /// It closes the connection.
    Cut,
    /// It never answers, neither this request nor any other of the connection.
    Nothing,
}

type Script = Box<dyn FnMut(&[String]) -> Said + Send>;

/// A listening port with a script behind it. Dropping it closes its connections.
pub(crate) struct Fake {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    behind: Mutex<Option<u16>>,
    script: Mutex<Script>,
    asked: Mutex<Vec<Vec<String>>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    streams: Vec<TcpStream>,
    is_over: bool,
}

impl Fake {
    /// `behind` answers what the script passes.
    pub(crate) fn before(behind: &Server, script: impl FnMut(&[String]) -> Said + Send + 'static) -> Fake {
        Fake::at(free_port(), Some(behind.port()), Box::new(script))
    }

    /// Nothing stands behind it: it answers the commands by which connections begin, and what the script answers.
    pub(crate) fn alone(script: impl FnMut(&[String]) -> Said + Send + 'static) -> Fake {
        Fake::at(free_port(), None, Box::new(script))
    }

    fn at(port: u16, behind: Option<u16>, script: Script) -> Fake {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a free port");
        let (script, asked, open) = (Mutex::new(script), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { behind: Mutex::new(behind), script, asked, open });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&serving);
                if !shared.opened(&stream) {
                    return;
                }
                thread::spawn(move || shared.serve(stream));
            }
        });
        Fake { port, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on it answers by another script, as if another server had its address. Its connections are closed.
    pub(crate) fn becomes(&self, script: impl FnMut(&[String]) -> Said + Send + 'static) {
        *lock(&self.shared.script) = Box::new(script);
        self.cut_all();
    }

    /// The same, before another real server.
    pub(crate) fn becomes_before(&self, behind: &Server, script: impl FnMut(&[String]) -> Said + Send + 'static) {
        *lock(&self.shared.behind) = Some(behind.port());
        self.becomes(script);
    }

    pub(crate) fn cut_all(&self) {
        lock(&self.shared.open).streams.drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }

    /// How often it was asked something that begins with these words.
    pub(crate) fn asked(&self, words: &[&str]) -> usize {
        lock(&self.shared.asked).iter().filter(|asked| begins(asked, words)).count()
    }

    /// How often it was asked something that begins with these words and has that one.
    pub(crate) fn asked_with(&self, words: &[&str], one: &str) -> usize {
        let is_meant = |asked: &&Vec<String>| begins(asked, words) && asked.iter().any(|word| word == one);
        lock(&self.shared.asked).iter().filter(is_meant).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        lock(&self.shared.open).is_over = true;
        self.cut_all();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)); // wakes the thread that accepts
    }
}

impl Shared {
    /// False if it is over.
    fn opened(&self, stream: &TcpStream) -> bool {
        let mut open = lock(&self.open);
        open.streams.extend(stream.try_clone());
        !open.is_over
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut behind = lock(&self.behind).and_then(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        let (mut read, mut answers) = (BytesMut::new(), BytesMut::new());
        while let Some(request) = frame(&mut stream, &mut read) {
            let words = words(&request);
            lock(&self.asked).push(words.clone());
            let said = (lock(&self.script))(&words);
            let reply = match (said, &mut behind) {
                (Said::Reply(reply), _) => Some(reply),
                (Said::Pass, Some(behind)) if listens(&words) => return listen(stream, behind, &request, &read),
                (Said::Pass, _) if begins(&words, &["HELLO"]) => Some(error("ERR unknown command")), // it speaks version 2
                (Said::Pass, Some(behind)) => {
                    behind.write_all(&request).ok().and_then(|()| frame(behind, &mut answers))
                }
                (Said::Pass, None) => Some(beginning(&words)),
                (Said::Cut, _) => None,
                (Said::Nothing, _) => Some(Vec::new()),
            };
            let Some(reply) = reply else { break };
            if stream.write_all(&reply).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// From here on bytes go to and fro as they are: messages come unasked.
fn listen(mut stream: TcpStream, behind: &mut TcpStream, request: &[u8], read: &[u8]) {
    let (mut from, mut to) = (behind.try_clone().expect("a socket"), stream.try_clone().expect("a socket"));
    let back = thread::spawn(move || _ = std::io::copy(&mut from, &mut to));
    if behind.write_all(request).and_then(|()| behind.write_all(read)).is_ok() {
        let _ = std::io::copy(&mut stream, behind);
    }
    let _ = (behind.shutdown(Shutdown::Both), stream.shutdown(Shutdown::Both), back.join());
}

fn begins(asked: &[String], words: &[&str]) -> bool {
    asked.len() >= words.len() && asked.iter().zip(words).all(|(word, wanted)| word.eq_ignore_ascii_case(wanted))
}

fn listens(words: &[String]) -> bool {
    words.first().is_some_and(|word| word.to_ascii_uppercase().ends_with("SUBSCRIBE"))
}

/// The next whole frame; `None` at the end.
fn frame(stream: &mut TcpStream, read: &mut BytesMut) -> Option<Vec<u8>> {
    loop {
        if let Some((_, length)) = decode_range(read).expect("RESP2") {
            return Some(read.split_to(length).to_vec());
        }
        let mut more = [0; 16_384];
        match stream.read(&mut more) {
            Ok(0) | Err(_) => return None,
            Ok(length) => read.extend_from_slice(&more[..length]),
        }
    }
}

fn words(request: &[u8]) -> Vec<String> {
    let Ok(Some((RangeFrame::Array(words), _))) = decode_range(request) else { return Vec::new() };
    let word = |word: &RangeFrame| match word {
        RangeFrame::BulkString((start, end)) => String::from_utf8_lossy(&request[*start..*end]).into_owned(),
        _ => String::new(),
    };
    words.iter().map(word).collect()
}

/// What a server that is alone answers where its script does not.
fn beginning(words: &[String]) -> Vec<u8> {
    match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
        Some("PING") => b"+PONG\r\n".to_vec(),
        Some("SUBSCRIBE") => array(&[bulk("subscribe"), bulk(&words[1]), b":1\r\n".to_vec()]),
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

pub(crate) fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

pub(crate) fn int(number: u64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub(crate) fn error(words: &str) -> Vec<u8> {
    format!("-{words}\r\n").into_bytes()
}

pub(crate) fn array(parts: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", parts.len()).into_bytes(), parts.concat()].concat()
}

/// The reply to CLUSTER SLOTS: for each range its first and last slot, and the port and the node id of its master.
pub(crate) fn slots(ranges: &[(u16, u16, u16, &str)]) -> Vec<u8> {
    let master = |port: u16, id: &str| array(&[bulk("127.0.0.1"), int(port.into()), bulk(id)]);
    let range = |&(first, last, port, id): &(u16, u16, u16, &str)| {
        array(&[int(first.into()), int(last.into()), master(port, id)])
    };
    array(&ranges.iter().map(range).collect::<Vec<_>>())
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

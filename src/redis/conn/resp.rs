//! The protocol of Redis: writes commands, and reads replies of its versions 2 and 3. What version 3 adds is read as version 2 would say it,
//! except for what the server sends unasked. A reply has bounds: a server that is not the one that was meant may send anything.

use bytes::{Buf, BytesMut};
use smallvec::SmallVec;

use crate::decimal::digits;

/// The number of lists inside each other. Commands of this crate have replies with four at most.
const DEPTH: usize = 8;
/// The length of a line: a number, a status or an error message.
const LINE: usize = 64 << 10;

/// A list has room for so many items before they arrive.
const FEW: usize = 16;
/// The length of what names the format of a text, in version 3.
const FORMAT: usize = "txt:".len();

/// Most replies to scripts fit, and need no memory of their own.
pub(crate) type Text = SmallVec<[u8; 40]>;

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(Text),
    Number(i64),
    Error(String),
    List(Vec<Reply>),
    Nothing,
    /// Not a reply: the server tells this unasked.
    Push(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Reply::Text(text) => str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// A number, also one that is sent as a text.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Reply::Number(number) => u64::try_from(*number).ok(),
            other => other.text()?.parse().ok(),
        }
    }

    /// The items of a list; of anything else, none.
    pub(crate) fn items(&self) -> &[Reply] {
        match self {
            Reply::List(items) | Reply::Push(items) => items,
            _ => &[],
        }
    }
}

/// The limits of one reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) words: usize,
}

impl Bounds {
    /// For a server that has not accepted the login yet.
    pub(crate) const STRANGER: Bounds = Bounds { bytes: 64 << 10, words: 1 << 10 };
    /// The largest legitimate replies are the map of a cluster and the list of all permits of a semaphore.
    pub(crate) const USUAL: Bounds = Bounds { bytes: 4 << 20, words: 256 << 10 };
}

/// Why bytes are no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the server does not speak the protocol of Redis")]
    Foreign,
    #[error("a reply of the server is too long")]
    TooLong,
    #[error("a reply of the server is nested too deeply")]
    TooDeep,
}

/// Reads replies from the bytes that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// What has arrived and belongs to no whole element yet.
    pub(crate) arrived: BytesMut,
    /// The lists that lack items, the outermost first.
    open: Vec<OpenList>,
    /// Of the reply that is being read.
    bytes: usize,
    words: usize,
}

#[derive(Debug)]
struct OpenList {
    shape: ListShape,
    items: Vec<Reply>,
}

#[derive(Debug, Clone, Copy)]
struct ListShape {
    length: usize,
    is_push: bool,
}

impl ListShape {
    fn of(self, items: Vec<Reply>) -> Reply {
        if self.is_push { Reply::Push(items) } else { Reply::List(items) }
    }
}

/// One element of a reply.
enum Element {
    Whole(Reply),
    /// A list, whose items follow.
    List(ListShape),
}

impl Decoder {
    /// The next reply. `None`: it has not arrived as a whole.
    pub(crate) fn next(&mut self, bounds: Bounds) -> Result<Option<Reply>, Malformed> {
        while let Some((element, length)) = element(&self.arrived, bounds)? {
            self.count(length, bounds)?;
            self.arrived.advance(length);
            if let Some(reply) = self.add(element)? {
                (self.bytes, self.words) = (0, 0);
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    fn count(&mut self, length: usize, bounds: Bounds) -> Result<(), Malformed> {
        self.bytes += length;
        self.words += 1;
        if self.bytes > bounds.bytes || self.words > bounds.words { Err(Malformed::TooLong) } else { Ok(()) }
    }

    /// Adds an element to the reply; returns the reply if it is whole.
    fn add(&mut self, element: Element) -> Result<Option<Reply>, Malformed> {
        let mut whole = match element {
            Element::Whole(reply) => reply,
            Element::List(shape) if shape.is_push && !self.open.is_empty() => return Err(Malformed::Foreign),
            Element::List(shape) if shape.length == 0 => shape.of(Vec::new()),
            Element::List(_) if self.open.len() == DEPTH => return Err(Malformed::TooDeep),
            Element::List(shape) => {
                self.open.push(OpenList { shape, items: Vec::with_capacity(shape.length.min(FEW)) });
                return Ok(None);
            }
        };
        while let Some(mut list) = self.open.pop() {
            list.items.push(whole);
            if list.items.len() < list.shape.length {
                self.open.push(list);
                return Ok(None);
            }
            whole = list.shape.of(list.items);
        }
        Ok(Some(whole))
    }
}

/// The first element and its length. `None`: it has not arrived as a whole.
fn element(arrived: &[u8], bounds: Bounds) -> Result<Option<(Element, usize)>, Malformed> {
    let Some(kind) = arrived.first() else { return Ok(None) };
    if !b"+-:$*_,#(=%~>".contains(kind) {
        return Err(Malformed::Foreign);
    }
    let Some(line) = line(&arrived[1..])? else { return Ok(None) };
    let after = 1 + line.len() + 2;
    let whole = |reply| Ok(Some((Element::Whole(reply), after)));
    match kind {
        b'+' => whole(Reply::Text(line.into())),
        b'-' => whole(Reply::Error(String::from_utf8_lossy(line).into_owned())),
        b':' => whole(Reply::Number(number(line)?)),
        b'_' => whole(Reply::Nothing),
        b'#' => whole(Reply::Number(i64::from(line == b"t"))),
        b',' | b'(' => whole(Reply::Text(line.into())),
        _ => match (number(line)?, kind) {
            (-1, b'$' | b'*') => whole(Reply::Nothing),
            (length, b'$') => text(arrived, after, size(length, bounds.bytes)?, 0),
            (length, b'=') => text(arrived, after, size(length, bounds.bytes)?, FORMAT),
            (length, b'%') => list(size(length, bounds.words / 2)? * 2, false, after),
            (length, _) => list(size(length, bounds.words)?, *kind == b'>', after),
        },
    }
}

fn list(length: usize, is_push: bool, after: usize) -> Result<Option<(Element, usize)>, Malformed> {
    Ok(Some((Element::List(ListShape { length, is_push }), after)))
}

/// The text of this length that begins there, without what names its format.
fn text(arrived: &[u8], start: usize, length: usize, format: usize) -> Result<Option<(Element, usize)>, Malformed> {
    let end = start + length;
    let text = start + format;
    if length < format {
        return Err(Malformed::Foreign);
    }
    match arrived.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((Element::Whole(Reply::Text(arrived[text..end].into())), end + 2))),
        Some(_) => Err(Malformed::Foreign),
    }
}

/// The bytes up to the end of the line.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    match bytes.iter().take(LINE).position(|byte| *byte == b'\n') {
        Some(at) => bytes[..at].strip_suffix(b"\r").map(Some).ok_or(Malformed::Foreign),
        None if bytes.len() >= LINE => Err(Malformed::TooLong),
        None => Ok(None),
    }
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    str::from_utf8(line).ok().and_then(|digits| digits.parse().ok()).ok_or(Malformed::Foreign)
}

fn size(length: i64, most: usize) -> Result<usize, Malformed> {
    let length = usize::try_from(length).map_err(|_| Malformed::Foreign)?;
    if length > most { Err(Malformed::TooLong) } else { Ok(length) }
}

/// Begins a command with so many words, its name included.
pub(crate) fn begin(out: &mut BytesMut, words: usize) {
    line_of(out, b"*", words as u64);
}

pub(crate) fn word(out: &mut BytesMut, word: &[u8]) {
    line_of(out, b"$", word.len() as u64);
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn number_word(out: &mut BytesMut, number: u64) {
    word(out, digits(number, &mut [0; 20]));
}

fn line_of(out: &mut BytesMut, kind: &[u8], number: u64) {
    [kind, digits(number, &mut [0; 20]), b"\r\n"].iter().for_each(|part| out.extend_from_slice(part));
}

/// A whole command.
pub(crate) fn command(out: &mut BytesMut, words: &[&str]) {
    begin(out, words.len());
    words.iter().for_each(|one| word(out, one.as_bytes()));
}

#[cfg(test)]
mod tests {
    use redis_protocol::resp2::{
        decode, encode,
        types::{OwnedFrame, Resp2Frame},
    };

    use super::*;

    /// What the decoder makes of these bytes if they arrive in such pieces: the replies, or the error.
    fn decoded(bytes: &[u8], piece: usize, bounds: Bounds) -> Result<Vec<Reply>, Malformed> {
        let (mut decoder, mut replies) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.arrived.extend_from_slice(piece);
            while let Some(reply) = decoder.next(bounds)? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    fn reply(bytes: &[u8]) -> Result<Vec<Reply>, Malformed> {
        decoded(bytes, 1, Bounds::USUAL)
    }

    #[test]
    fn each_kind_of_reply() {
        let text = |text: &str| Reply::Text(text.as_bytes().into());
        let all = b"+OK\r\n-ERR no\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n*2\r\n*1\r\n:1\r\n+x\r\n";
        let nested = Reply::List(vec![Reply::List(vec![Reply::Number(1)]), text("x")]);
        let expected = [
            text("OK"),
            Reply::Error("ERR no".into()),
            Reply::Number(-7),
            text("a\r\nbc"),
            Reply::Nothing,
            Reply::Nothing,
            Reply::List(vec![]),
            text(""),
            nested,
        ];
        for piece in 1..all.len() {
            assert_eq!(decoded(all, piece, Bounds::USUAL).expect("well formed"), expected);
        }
    }

    #[test]
    fn version_3_says_the_same_in_other_words() {
        let text = |text: &str| Reply::Text(text.as_bytes().into());
        let all =
            b"_\r\n#t\r\n#f\r\n,1.5\r\n(123\r\n=8\r\ntxt:a\r\nb\r\n%1\r\n+a\r\n:1\r\n~1\r\n+a\r\n>2\r\n+x\r\n_\r\n";
        let expected = [
            Reply::Nothing,
            Reply::Number(1),
            Reply::Number(0),
            text("1.5"),
            text("123"),
            text("a\r\nb"),
            Reply::List(vec![text("a"), Reply::Number(1)]),
            Reply::List(vec![text("a")]),
            Reply::Push(vec![text("x"), Reply::Nothing]),
        ];
        for piece in 1..all.len() {
            assert_eq!(decoded(all, piece, Bounds::USUAL).expect("well formed"), expected);
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for foreign in [
            "HTTP/1.1 400\r\n",
            "$-2\r\n",
            "*-2\r\n",
            ":x\r\n",
            "$1\r\nabc",
            "+a\n",
            "$\r\n",
            "*1x\r\n",
            "|1\r\n",
            ">-1\r\n",
            "=1\r\na\r\n",
            "*1\r\n>0\r\n",
        ] {
            assert_eq!(reply(foreign.as_bytes()), Err(Malformed::Foreign), "{foreign:?}");
        }
    }

    #[test]
    fn a_reply_has_bounds() {
        let is_too_long = |bytes: &[u8]| assert_eq!(decoded(bytes, 1 << 12, Bounds::STRANGER), Err(Malformed::TooLong));
        is_too_long(b"*2000000000\r\n");
        is_too_long(b"$2000000000\r\n");
        is_too_long("+".repeat(2 * LINE).as_bytes());
        is_too_long(format!("*1024\r\n{}", ":1\r\n".repeat(1024)).as_bytes());
        is_too_long(format!("*9\r\n{}", format!("$8000\r\n{:8000}\r\n", "").repeat(9)).as_bytes());
        assert_eq!(reply("*1\r\n".repeat(20_000).as_bytes()), Err(Malformed::TooDeep));
        assert!(reply(format!("{}:1\r\n", "*1\r\n".repeat(DEPTH)).as_bytes()).is_ok());
    }

    #[test]
    fn commands() {
        let mut out = BytesMut::new();
        command(&mut out, &["AUTH", "", "a\r\nb"]);
        begin(&mut out, 3);
        [0, 9, 10].into_iter().for_each(|number| number_word(&mut out, number));
        assert_eq!(
            out,
            "*3\r\n$4\r\nAUTH\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*3\r\n$1\r\n0\r\n$1\r\n9\r\n$2\r\n10\r\n".as_bytes()
        );
    }

    fn any_frame(random: &mut fastrand::Rng, depth: usize) -> OwnedFrame {
        let text: String = (0..random.usize(0..6)).map(|_| random.alphanumeric()).collect();
        match random.u8(0..if depth < 4 { 7 } else { 5 }) {
            0 => OwnedFrame::SimpleString(text.into_bytes()),
            1 => OwnedFrame::Error(text),
            2 => OwnedFrame::Integer(random.i64(..)),
            3 => OwnedFrame::BulkString((0..random.usize(0..9)).map(|_| random.u8(..)).collect()),
            4 => OwnedFrame::Null,
            _ => OwnedFrame::Array((0..random.usize(0..4)).map(|_| any_frame(random, depth + 1)).collect()),
        }
    }

    fn of_frame(frame: OwnedFrame) -> Reply {
        match frame {
            OwnedFrame::SimpleString(text) | OwnedFrame::BulkString(text) => Reply::Text(text.into()),
            OwnedFrame::Error(words) => Reply::Error(words),
            OwnedFrame::Integer(number) => Reply::Number(number),
            OwnedFrame::Array(items) => Reply::List(items.into_iter().map(of_frame).collect()),
            OwnedFrame::Null => Reply::Nothing,
        }
    }

    /// Another library is the oracle, for replies and for replies in which some bytes are changed. `FUZZ_REPLIES` says how many.
    #[test]
    fn replies_are_read_as_by_another_library() {
        let number = std::env::var("FUZZ_REPLIES").map_or(20_000, |number| number.parse().expect("a number"));
        let mut random = fastrand::Rng::with_seed(57);
        let mut agreed = 0;
        for _ in 0..number {
            let frame = any_frame(&mut random, 0);
            let mut bytes = vec![0; frame.encode_len(false)];
            encode::encode(&mut bytes, &frame, false).expect("room for it");
            for _ in 0..random.u8(0..3) {
                let at = random.usize(0..bytes.len());
                bytes[at] =
                    if random.bool() { random.u8(..) } else { *random.choice(b"+-:$*\r\n0123456789").expect("some") };
            }
            let mine = decoded(&bytes, random.usize(1..20), Bounds::USUAL);
            match (decode::decode(&bytes), &mine) {
                (Ok(Some((theirs, _))), Ok(replies)) if !replies.is_empty() => {
                    assert_eq!(replies[0], of_frame(theirs), "{:?}", String::from_utf8_lossy(&bytes));
                    agreed += 1;
                }
                (Ok(None), Ok(replies)) => assert!(replies.is_empty(), "{:?}", String::from_utf8_lossy(&bytes)),
                _ => {} // one of them refuses it
            }
        }
        assert!(agreed > number / 3, "{agreed}");
    }
}

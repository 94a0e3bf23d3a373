//! The reply of a script to one request.

use smallvec::SmallVec;

use super::fault::Fault;

/// The reply to one request: a code, and the words after it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: Code,
    rest: SmallVec<[u8; 40]>,
}

impl Answer {
    pub(crate) fn new(code: Code, rest: &str) -> Answer {
        Answer { code, rest: rest.as_bytes().into() }
    }

    fn rest(&self) -> &str {
        str::from_utf8(&self.rest).expect("it was a `str`")
    }

    /// Reads `nonce code words...`; returns the nonce, too. If the words are not UTF-8, there are none: another program may use such
    /// ids.
    pub(super) fn read(reply: &[u8]) -> Option<(u64, Result<Answer, Fault>)> {
        let mut words = reply.splitn(3, |byte| *byte == b' ');
        let (nonce, code) = (text(words.next())?, text(words.next())?);
        let rest = words.next();
        let answer = match Code::of(code)? {
            Code::Error => Err(Fault::said(&String::from_utf8_lossy(rest.unwrap_or_default()))),
            code => Ok(Answer::new(code, text(rest).unwrap_or_default())),
        };
        Some((nonce.parse().ok()?, answer))
    }

    /// The words, if there are at least `N`; the last one may contain spaces.
    pub(crate) fn words<const N: usize>(&self) -> Option<[&str; N]> {
        let mut words = self.rest().splitn(N, ' ');
        let all = [(); N].map(|()| words.next());
        all.iter().all(Option::is_some).then(|| all.map(Option::unwrap_or_default))
    }

    /// The only word, if it is a number.
    pub(crate) fn number(&self) -> Option<u64> {
        self.rest().parse().ok()
    }
}

fn text(word: Option<&[u8]>) -> Option<&str> {
    str::from_utf8(word?).ok()
}

macro_rules! codes {
    ($($code:ident $word:literal,)*) => {
        /// The first word of a reply; the header of each script lists its codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Code {
            $($code,)*
        }

        impl Code {
            pub(super) fn of(word: &str) -> Option<Code> {
                match word {
                    $($word => Some(Code::$code),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    Busy "busy",
    Conflict "conflict",
    Deeper "deeper",
    Error "error",
    Free "free",
    Gone "gone",
    Granted "granted",
    Handed "handed",
    Held "held",
    Kept "kept",
    Lost "lost",
    Out "out",
    Queued "queued",
    Released "released",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let read = |reply: &str| Answer::read(reply.as_bytes()).expect("an answer");
        let (nonce, busy) = read("7 busy -1 a client:of some other kind");
        assert_eq!((nonce, busy.expect("no error").words()), (7, Some(["-1", "a client:of some other kind"])));
        let (_, gone) = read("8 gone");
        let gone = gone.expect("no error");
        assert_eq!((gone.code, gone.number(), gone.words::<2>()), (Code::Gone, None, None));
        assert_eq!(read("9 released 3").1.expect("no error").number(), Some(3));
        assert!(matches!(read("9 error WRONGTYPE Operation against a key").1, Err(Fault::Conflict)));
        let odd = Answer::read(b"7 busy -1 \xff:1").expect("an answer").1.expect("no error");
        assert_eq!((odd.code, odd.words::<2>()), (Code::Busy, None));
        for bad in ["", "7", "x gone", "7 unheard of", "-1 gone"] {
            assert!(Answer::read(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}

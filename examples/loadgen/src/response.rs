//! Where one HTTP/1.1 response ends: a state machine fed with the bytes of a connection as they come.
//!
//! The body is counted, not kept. Lengths, chunks and "until close" (RFC 9112 section 6.3) are understood; the requests
//! are GETs, so a response to HEAD or CONNECT can't occur. Interim responses (1xx) are skipped.

/// Longest head that is accepted, status line and headers together.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// What is wrong with a response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("response head: {0}")]
    Head(String),
    #[error("response head longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    #[error("content-length {0:?} is not a number")]
    Length(String),
    #[error("chunk size {0:?} is not a hexadecimal number")]
    Chunk(String),
    #[error("connection closed within a response")]
    Truncated,
    #[error("{0} bytes after the end of the response")]
    Trailing(usize),
}

/// A response that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    pub status: u16,
    /// Whether the connection can carry another request.
    pub keep_alive: bool,
}

/// Reads one response; after it has ended, reads the next.
#[derive(Default, Debug)]
pub struct ResponseReader {
    state: State,
    /// The head so far, or the chunk-size line so far.
    held: Vec<u8>,
    status: u16,
    keep_alive: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum State {
    #[default]
    Head,
    Length(u64),
    ChunkSize,
    /// Bytes of the chunk still to come, its final CR LF included.
    ChunkData(u64),
    /// Header lines after the last chunk, up to an empty one.
    Trailer,
    UntilClose,
}

impl ResponseReader {
    /// Whether a byte of a response has come that has not ended.
    pub fn is_within(&self) -> bool {
        self.state != State::Head || !self.held.is_empty()
    }

    /// Takes bytes as they were received. `Some` when the response ended with the last of them; bytes after the end are
    /// an error, as only one request is in flight on a connection.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Option<Finished>, ResponseError> {
        loop {
            let done = match self.state {
                State::Head => self.feed_head(&mut bytes)?,
                State::Length(left) => {
                    let rest = left - skip(&mut bytes, left);
                    self.state = State::Length(rest);
                    rest == 0
                }
                State::ChunkSize => {
                    if let Some(line) = self.take_line(&mut bytes)? {
                        let digits = line.split(';').next().unwrap_or_default().trim();
                        let size = u64::from_str_radix(digits, 16).ok().filter(|size| *size < 1 << 60);
                        self.state = match size.ok_or_else(|| ResponseError::Chunk(line.clone()))? {
                            0 => State::Trailer,
                            size => State::ChunkData(size + 2),
                        };
                    }
                    false
                }
                State::ChunkData(left) => {
                    let taken = skip(&mut bytes, left);
                    self.state = if taken == left { State::ChunkSize } else { State::ChunkData(left - taken) };
                    false
                }
                State::Trailer => self.take_line(&mut bytes)?.is_some_and(|line| line.is_empty()),
                State::UntilClose => {
                    skip(&mut bytes, u64::MAX);
                    false
                }
            };
            if done {
                let finished = self.finish();
                return if bytes.is_empty() { Ok(Some(finished)) } else { Err(ResponseError::Trailing(bytes.len())) };
            }
            if bytes.is_empty() {
                return Ok(None);
            }
        }
    }

    /// The peer closed the connection: the end of a response without a length, an error within any other.
    pub fn close(&mut self) -> Result<Option<Finished>, ResponseError> {
        match self.state {
            State::UntilClose => Ok(Some(self.finish())),
            _ if self.is_within() => Err(ResponseError::Truncated),
            _ => Ok(None),
        }
    }

    /// Reads the head; true when it is the whole response.
    fn feed_head(&mut self, bytes: &mut &[u8]) -> Result<bool, ResponseError> {
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&self.held).map_err(|e| ResponseError::Head(e.to_string()))?;
        let httparse::Status::Complete(head_bytes) = parsed else {
            *bytes = &[];
            return if self.held.len() > HEAD_BYTES_MAX { Err(ResponseError::HeadTooLong) } else { Ok(false) };
        };
        self.status = head.code.unwrap_or_default();
        self.keep_alive = head.version == Some(1);
        let (mut length, mut chunked) = (None, false);
        for header in head.headers.iter() {
            let value = String::from_utf8_lossy(header.value);
            if header.name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse::<u64>().map_err(|_| ResponseError::Length(value.into_owned()))?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.to_ascii_lowercase().ends_with("chunked");
            } else if header.name.eq_ignore_ascii_case("connection") {
                self.keep_alive = value.eq_ignore_ascii_case("keep-alive")
                    || (self.keep_alive && !value.eq_ignore_ascii_case("close"));
            }
        }
        *bytes = &bytes[head_bytes - before..];
        self.held.clear();
        self.state = match (self.status, chunked, length) {
            (100..200, ..) => State::Head,
            (204 | 304, ..) => return Ok(true),
            (_, true, _) => State::ChunkSize,
            (_, false, Some(0)) => return Ok(true),
            (_, false, Some(length)) => State::Length(length),
            (_, false, None) => {
                self.keep_alive = false;
                State::UntilClose
            }
        };
        Ok(false)
    }

    /// A line without its end, once it is complete.
    fn take_line(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, ResponseError> {
        let Some(end) = bytes.iter().position(|b| *b == b'\n') else {
            self.held.extend_from_slice(bytes);
            *bytes = &[];
            return if self.held.len() > HEAD_BYTES_MAX { Err(ResponseError::HeadTooLong) } else { Ok(None) };
        };
        self.held.extend_from_slice(&bytes[..end]);
        *bytes = &bytes[end + 1..];
        let line = String::from_utf8_lossy(&self.held).trim_end_matches('\r').to_owned();
        self.held.clear();
        Ok(Some(line))
    }

    fn finish(&mut self) -> Finished {
        self.state = State::Head;
        self.held.clear();
        Finished { status: self.status, keep_alive: self.keep_alive }
    }
}

/// Drops up to `most` bytes and returns how many there were.
fn skip(bytes: &mut &[u8], most: u64) -> u64 {
    let taken = most.min(bytes.len() as u64);
    *bytes = &bytes[taken as usize..];
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\nT: v\r\n\r\n";
    const INTERIM: &[u8] =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

    fn whole(bytes: &[u8]) -> Result<Option<Finished>, ResponseError> {
        ResponseReader::default().feed(bytes)
    }

    #[test]
    fn ends_where_the_length_says() {
        let mut reader = ResponseReader::default();
        assert!(!reader.is_within());
        assert_eq!(reader.feed(&LENGTH[..20]), Ok(None));
        assert!(reader.is_within());
        assert_eq!(reader.feed(&LENGTH[20..]), Ok(Some(Finished { status: 200, keep_alive: true })));
        assert!(!reader.is_within());
        assert_eq!(reader.close(), Ok(None));
    }

    #[test]
    fn skips_interim_responses_and_obeys_close() {
        assert_eq!(whole(INTERIM), Ok(Some(Finished { status: 404, keep_alive: false })));
    }

    #[test]
    fn old_versions_close_unless_they_say_otherwise() {
        let closing = whole(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap().unwrap();
        let staying =
            whole(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n").unwrap().unwrap();
        assert!(!closing.keep_alive && staying.keep_alive);
    }

    #[test]
    fn without_length_the_close_is_the_end() {
        let mut reader = ResponseReader::default();
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc"), Ok(None));
        assert_eq!(reader.close(), Ok(Some(Finished { status: 200, keep_alive: false })));
    }

    #[test]
    fn bad_responses_are_named() {
        assert_eq!(
            whole(b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n"),
            Err(ResponseError::Length("-4".to_owned()))
        );
        assert_eq!(
            whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            Err(ResponseError::Chunk("xyz".to_owned()))
        );
        assert_eq!(whole(&[LENGTH, b"HT"].concat()), Err(ResponseError::Trailing(2)));
        assert!(matches!(whole(b"SSH-2.0-OpenSSH\r\n"), Err(ResponseError::Head(_))));
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'a'; 20_000]].concat();
        assert_eq!(whole(&endless), Err(ResponseError::HeadTooLong));
        let mut reader = ResponseReader::default();
        reader.feed(&LENGTH[..LENGTH.len() - 1]).unwrap();
        assert_eq!(reader.close(), Err(ResponseError::Truncated));
    }

    proptest! {
        /// However the network cuts the bytes, the response ends with its last byte and not before.
        #[test]
        fn cuts_do_not_matter(cuts in prop::collection::vec(0_usize..200, 0..8), which in 0_usize..3) {
            let bytes = [LENGTH, CHUNKED, INTERIM][which];
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % bytes.len()).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut reader = ResponseReader::default();
            let mut ends = Vec::new();
            for pair in cuts.windows(2) {
                if let Some(finished) = reader.feed(&bytes[pair[0]..pair[1]]).unwrap() {
                    ends.push((pair[1], finished));
                }
            }
            prop_assert_eq!(ends, vec![(bytes.len(), whole(bytes).unwrap().unwrap())]);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = whole(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(), &bytes].concat());
            let _ = whole(&bytes);
        }
    }
}

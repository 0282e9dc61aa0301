//! Decodes compressed bodies (RFC 9110 §8.4.1), so that they can be searched. The windows of the
//! codings bound the memory: what is decoded is passed on in parts, however much it is.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::zstd::params::DParameter;
use compression_codecs::{
    BrotliDecoder, DecodeV2, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use hyper::body::{Body, Frame, SizeHint};

use crate::ground::quota::QuotaGuard;

/// The number of bytes that are decoded at once.
const PART: usize = 16 * 1024;

/// The logarithm of the largest zstd window that is decoded: the 8 MB that RFC 9659 allows in HTTP.
const ZSTD_WINDOW: u32 = 23;

/// A coding that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950; some servers send RFC 1951 under this name.
    Deflate,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

impl ContentCoding {
    /// Returns the coding of this name, in any case; `None` if it is not decoded.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            b"br" => Some(Self::Brotli),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the registered name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Decodes `body`, which must be one whole member, stream or frame, and stand for at most `most`
    /// bytes. Deflate is only the form of RFC 1950.
    ///
    /// # Errors
    /// Fails if it is more or less than that.
    pub fn decode(self, body: &[u8], most: usize) -> Result<Bytes, DecodeError> {
        if self == Self::Deflate && !is_zlib(body) {
            return Err(DecodeError::Malformed);
        }
        let mut decoder = self.decoder(body);
        let mut input = PartialBuffer::new(body);
        let mut part = vec![0; PART];
        let mut whole = BytesMut::new();
        loop {
            let before = input.written_len();
            let mut output = WriteBuffer::new_initialized(&mut part);
            let decoded = decoder.decode(&mut input, &mut output);
            let is_end = decoded.map_err(|_| DecodeError::Malformed)?;
            let written = output.written_len();
            whole.extend_from_slice(part.get(..written).unwrap_or_default());
            if whole.len() > most {
                return Err(DecodeError::TooLong);
            }
            let is_stuck = written == 0 && input.written_len() == before;
            match (is_end, is_stuck) {
                (true, _) => break,
                (false, true) => return Err(DecodeError::Malformed),
                (false, false) => {}
            }
        }
        if input.written_len() < body.len() {
            return Err(DecodeError::Malformed);
        }
        Ok(whole.freeze())
    }

    /// Returns the decoder of a body that begins with `first`.
    fn decoder(self, first: &[u8]) -> Box<dyn DecodeV2 + Send> {
        match self {
            Self::Gzip => Box::new(GzipDecoder::new()),
            Self::Deflate if is_zlib(first) => Box::new(ZlibDecoder::new()),
            Self::Deflate => Box::new(DeflateDecoder::new()),
            Self::Brotli => Box::new(BrotliDecoder::new()),
            Self::Zstd => Box::new(ZstdDecoder::new_with_params(&[DParameter::window_log_max(
                ZSTD_WINDOW,
            )])),
        }
    }
}

/// The error of a body that is decoded as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It stands for too many bytes.
    TooLong,
    /// It is not what its coding says, ends early, or something stands behind it.
    Malformed,
}

/// Returns true if `body` begins as RFC 1950 says.
fn is_zlib(body: &[u8]) -> bool {
    body.first().is_some_and(|byte| byte & 0x8f == 8)
}

/// A body, decoded if it has a coding.
pub struct Decoded<B> {
    body: B,
    coding: Option<ContentCoding>,
    /// `None` until the first byte.
    decoder: Option<Box<dyn DecodeV2 + Send>>,
    /// Bytes that are not decoded yet.
    input: Bytes,
    /// True while a member or frame is not complete.
    is_within: bool,
    /// True if the last part was full, so that more may come without further input.
    has_more: bool,
    trailers: Option<Frame<Bytes>>,
    is_over: bool,
    _place: Option<QuotaGuard>,
}

impl<B> Decoded<B> {
    /// Wraps `body`, and decodes it if `coding` is given. The guard is kept until this is dropped.
    #[must_use]
    pub fn new(body: B, coding: Option<(ContentCoding, QuotaGuard)>) -> Self {
        let (coding, place) = coding.unzip();
        let input = Bytes::new();
        let is_within = false;
        let has_more = false;
        let is_over = false;
        Self {
            body,
            coding,
            decoder: None,
            input,
            is_within,
            has_more,
            trailers: None,
            is_over,
            _place: place,
        }
    }

    /// Decodes the next part of what has arrived; returns `None` if more has to arrive.
    fn decode(&mut self, coding: ContentCoding) -> io::Result<Option<Bytes>> {
        while self.has_more || !self.input.is_empty() {
            let is_first = self.decoder.is_none();
            let decoder = self
                .decoder
                .get_or_insert_with(|| coding.decoder(&self.input));
            // A body may have several members, one after the other.
            if !self.is_within && !is_first {
                decoder.reinit()?;
            }
            let mut part = vec![0; PART];
            let mut output = WriteBuffer::new_initialized(&mut part);
            let mut input = PartialBuffer::new(&*self.input);
            let decoded = decoder.decode(&mut input, &mut output);
            // Some decoders fail if more has to arrive. An error in the data itself comes again
            // with more.
            let is_end = if self.input.is_empty() {
                decoded.unwrap_or(false)
            } else {
                decoded?
            };
            let read = input.written_len();
            let written = output.written_len();
            if read == 0 && written == 0 && !self.input.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a part of it cannot be decoded",
                ));
            }
            self.input.advance(read);
            (self.is_within, self.has_more) = (!is_end, !is_end && written == PART);
            if written > 0 {
                part.truncate(written);
                return Ok(Some(part.into()));
            }
        }
        Ok(None)
    }

    /// Decodes the rest at the end of the body; returns `None` if nothing is left.
    ///
    /// # Errors
    /// Fails if the body ends early.
    fn finish(&mut self) -> io::Result<Option<Bytes>> {
        let Some(decoder) = self.decoder.as_mut().filter(|_| self.is_within) else {
            return Ok(None);
        };
        let mut part = vec![0; PART];
        let mut output = WriteBuffer::new_initialized(&mut part);
        self.is_within = !decoder.finish(&mut output)?;
        let written = output.written_len();
        part.truncate(written);
        Ok((written > 0).then(|| part.into()))
    }
}

impl<B: fmt::Debug> fmt::Debug for Decoded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoded")
            .field("body", &self.body)
            .field("coding", &self.coding)
            .finish_non_exhaustive()
    }
}

impl<B> Body for Decoded<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Some(coding) = this.coding else {
            return Pin::new(&mut this.body).poll_frame(cx).map_err(Into::into);
        };
        loop {
            if let Some(part) = this.decode(coding)? {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if this.is_over {
                return Poll::Ready(match this.finish()? {
                    Some(part) => Some(Ok(Frame::data(part))),
                    None => this.trailers.take().map(Ok),
                });
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx))
                .transpose()
                .map_err(Into::into)?
            {
                Some(frame) => match frame.into_data() {
                    Ok(data) => this.input = data,
                    Err(trailers) => (this.trailers, this.is_over) = (Some(trailers), true),
                },
                None => this.is_over = true,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.coding {
            Some(_) => self.is_over && self.trailers.is_none() && !self.is_within,
            None => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.coding.is_some() {
            SizeHint::default()
        } else {
            self.body.size_hint()
        }
    }
}

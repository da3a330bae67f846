//! Server-sent events, read as clients do.

use bytes::BytesMut;
use serde_json::Value;

/// One event of a stream, or its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `data: {…}`, in some APIs after `event: NAME`. Then the data repeats the name as `type`.
    Json(Value),
    /// `data: [DONE]`.
    Done,
    /// The connection ended.
    End,
    /// The connection broke.
    Broken(String),
}

impl Event {
    /// Returns the error object, if this event has one.
    pub fn error(&self) -> Option<&Value> {
        match self {
            Self::Json(value) => value.get("error"),
            _ => None,
        }
    }
}

/// A running stream; dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    response: reqwest::Response,
    buffer: BytesMut,
}

impl Events {
    /// Reads the events of a response.
    pub fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            buffer: BytesMut::new(),
        }
    }

    /// Waits for the next event.
    ///
    /// # Panics
    /// On bytes that are no event.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event = self.buffer.split_to(end + 2);
                return parse(&event[..end]);
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => {
                    assert!(self.buffer.is_empty(), "half an event: {:?}", self.buffer);
                    return Event::End;
                }
                Err(error) => return Event::Broken(format!("{error:?}")),
            }
        }
    }

    /// Returns all chunks up to `[DONE]`, after which nothing may come.
    ///
    /// # Panics
    /// Panics if the stream ends otherwise.
    pub async fn chunks(mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        loop {
            match self.next().await {
                Event::Json(chunk) => chunks.push(chunk),
                Event::Done => break,
                other => panic!("{other:?} after {chunks:?}"),
            }
        }
        assert_eq!(self.next().await, Event::End);
        chunks
    }

    /// Returns all events of an API whose streams end without `[DONE]`.
    ///
    /// # Panics
    /// Panics if the stream breaks.
    pub async fn to_end(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Event::Json(event) => events.push(event),
                Event::End => return events,
                other => panic!("{other:?} after {events:?}"),
            }
        }
    }

    /// Reads the rest of a stream whose request was aborted.
    ///
    /// # Panics
    /// Panics if it ends otherwise.
    pub async fn aborted(mut self) {
        let error = loop {
            match self.next().await {
                event if event.error().is_some() => break event,
                Event::Json(_) => {}
                other => panic!("{other:?}"),
            }
        };
        let code = error.error().map(|error| error["code"].clone());
        assert_eq!(code, Some("request_aborted".into()));
        assert_eq!(self.next().await, Event::End);
    }
}

fn parse(event: &[u8]) -> Event {
    let text = std::str::from_utf8(event).expect("events are UTF-8");
    let named = text.strip_prefix("event: ");
    let (name, text) = match named.and_then(|named| named.split_once('\n')) {
        Some((name, text)) => (Some(name), text),
        None => (None, text),
    };
    let data = text
        .strip_prefix("data: ")
        .unwrap_or_else(|| panic!("no event: {text:?}"));
    if data == "[DONE]" {
        return Event::Done;
    }
    let value: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("no JSON: {data:?}"));
    assert_eq!(value["type"].as_str().filter(|_| name.is_some()), name);
    Event::Json(value)
}

/// Returns the text of a choice, joined from chat or completion chunks.
pub fn text(chunks: &[Value], index: u64) -> String {
    let choices = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].as_array())
        .flatten()
        .filter(|choice| choice["index"] == index);
    choices
        .filter_map(|choice| {
            choice["delta"]["content"]
                .as_str()
                .or(choice["text"].as_str())
        })
        .collect()
}

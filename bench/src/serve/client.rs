//! One streamed completion and its times.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use serde_json::{Map, Value, json};

use super::{Args, prompts::Prompt};

/// A connected client.
pub struct Client {
    http: reqwest::Client,
    url: String,
    model: String,
    api_key: Option<String>,
    extra_body: Map<String, Value>,
}

/// The server's address without the `/v1` that OpenAI's own clients expect.
fn root(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/')
}

/// Figures of one request.
#[derive(Debug, Default)]
pub struct Timing {
    /// Time from sending to the first text.
    pub ttft: Duration,
    /// Times between two pieces of text.
    pub gaps: Vec<Duration>,
    /// Time from sending to the end.
    pub e2e: Duration,
    /// Output tokens by the server's count; the pieces of its stream if it does not count.
    pub output_tokens: usize,
    /// Input tokens by the server's count.
    pub input_tokens: usize,
    /// Cached tokens by the server's count.
    pub cached_tokens: usize,
}

impl Client {
    /// Connects and finds the model's name.
    pub async fn connect(args: &Args) -> anyhow::Result<Self> {
        // A connection for each request: some servers close one behind a stream, which a client that
        // sends its next request at that moment sees as a failure.
        let http = reqwest::Client::builder()
            .tcp_nodelay(true)
            .pool_max_idle_per_host(0)
            .build()?;
        let base = root(&args.base_url);
        let mut client = Self {
            http,
            url: format!("{base}/v1/completions"),
            model: String::new(),
            api_key: args.api_key.clone(),
            extra_body: args.extra_body.clone().unwrap_or_default(),
        };
        client.model = match &args.model {
            Some(model) => model.clone(),
            None => client.first_model(base).await?,
        };
        Ok(client)
    }

    /// Name of the model that is asked for.
    pub fn model(&self) -> &str {
        &self.model
    }

    async fn first_model(&self, base: &str) -> anyhow::Result<String> {
        let request = self.authorized(self.http.get(format!("{base}/v1/models")));
        let response = request
            .send()
            .await
            .with_context(|| format!("no server at {base}"))?;
        let models: Value = response.error_for_status()?.json().await?;
        let id = models["data"][0]["id"].as_str();
        Ok(id
            .context("the server lists no model; name one with --model")?
            .to_owned())
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Streams one completion of `output_len` tokens.
    pub async fn complete(&self, prompt: &Prompt, output_len: usize) -> anyhow::Result<Timing> {
        let body = self.body(prompt, output_len);
        let start = Instant::now();
        let response = self
            .authorized(self.http.post(&self.url).json(&body))
            .send()
            .await?;
        if !response.status().is_success() {
            bail!("{}: {}", response.status(), response.text().await?);
        }
        let mut reading = Reading::new(start);
        let mut lines = Lines::default();
        let mut bytes = response.bytes_stream();
        while let Some(chunk) = bytes.next().await {
            let now = Instant::now();
            lines.push(&chunk?);
            while let Some(line) = lines.next() {
                reading.event(&line, now)?;
            }
        }
        reading.end()
    }

    fn body(&self, prompt: &Prompt, output_len: usize) -> Value {
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_len,
            "temperature": 0.0,
            "ignore_eos": true,
            // Without this, a token without text makes no event, and there is no gap to
            // time.
            "skip_special_tokens": false,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Value::Object(fields) = &mut body {
            fields.extend(self.extra_body.clone());
        }
        body
    }
}

struct Reading {
    start: Instant,
    last: Option<Instant>,
    timing: Timing,
    ended: bool,
}

impl Reading {
    fn new(start: Instant) -> Self {
        Self {
            start,
            last: None,
            timing: Timing::default(),
            ended: false,
        }
    }

    /// The figures, once the stream has ended.
    fn end(mut self) -> anyhow::Result<Timing> {
        if !self.ended {
            bail!("the stream ended without [DONE]");
        }
        if self.timing.output_tokens == 0 {
            // The server counts nothing: each piece of its stream is a token.
            self.timing.output_tokens = self.timing.gaps.len() + usize::from(self.last.is_some());
        }
        self.timing.e2e = self.start.elapsed();
        Ok(self.timing)
    }

    fn event(&mut self, line: &str, now: Instant) -> anyhow::Result<()> {
        let Some(data) = line.strip_prefix("data:") else {
            return Ok(());
        };
        if data.trim() == "[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data)?;
        if let Some(error) = event.get("error") {
            bail!("error in the stream: {error}");
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |value: &Value| value.as_u64().unwrap_or(0) as usize;
            self.timing.output_tokens = count(&usage["completion_tokens"]);
            self.timing.input_tokens = count(&usage["prompt_tokens"]);
            self.timing.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
        }
        // A token with bytes that are held back still makes a piece of the stream.
        if event["choices"]
            .as_array()
            .is_some_and(|choices| !choices.is_empty())
        {
            match self.last.replace(now) {
                None => self.timing.ttft = now - self.start,
                Some(last) => self.timing.gaps.push(now - last),
            }
        }
        Ok(())
    }
}

/// Splits a byte stream into lines.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    at: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.at));
        self.buffer.extend_from_slice(bytes);
    }
    fn next(&mut self) -> Option<String> {
        let end = self.buffer[self.at..]
            .iter()
            .position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&self.buffer[self.at..self.at + end]).into_owned();
        self.at += end + 1;
        Some(line.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_comes_with_and_without_its_version() {
        for url in [
            "http://a:1",
            "http://a:1/",
            "http://a:1/v1",
            "http://a:1/v1/",
        ] {
            assert_eq!(root(url), "http://a:1");
        }
        assert_eq!(root("http://a/my/v1"), "http://a/my");
    }

    #[test]
    fn lines_may_be_cut_anywhere() {
        let mut lines = Lines::default();
        lines.push(b"data: a\nda");
        assert_eq!(lines.next().as_deref(), Some("data: a"));
        assert_eq!(lines.next(), None);
        lines.push(b"ta: b\r\n\n");
        assert_eq!(lines.next().as_deref(), Some("data: b"));
        assert_eq!(lines.next().as_deref(), Some(""));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn times_and_counts_come_from_the_events() -> anyhow::Result<()> {
        let start = Instant::now();
        let mut reading = Reading::new(start);
        let at = |ms| start + Duration::from_millis(ms);
        reading.event(r#"data: {"choices":[{"text":"a"}]}"#, at(5))?;
        reading.event(r#"data: {"choices":[{"text":"b"}],"usage":null}"#, at(8))?;
        reading.event(
            r#"data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}"#,
            at(9),
        )?;
        reading.event("data: [DONE]", at(9))?;
        assert_eq!(reading.timing.ttft, Duration::from_millis(5));
        assert_eq!(reading.timing.gaps, [Duration::from_millis(3)]);
        assert_eq!(reading.timing.output_tokens, 2);
        assert!(reading.ended);
        assert!(
            reading
                .event(r#"data: {"error":{"message":"x"}}"#, at(9))
                .is_err()
        );
        Ok(())
    }
    #[test]
    fn a_server_that_counts_nothing_is_counted_by_its_pieces() -> anyhow::Result<()> {
        let mut reading = Reading::new(Instant::now());
        for _ in 0..3 {
            reading.event(r#"data: {"choices":[{"text":"a"}]}"#, Instant::now())?;
        }
        assert!(Reading::new(Instant::now()).end().is_err());
        reading.event("data: [DONE]", Instant::now())?;
        assert_eq!(reading.end()?.output_tokens, 3);
        Ok(())
    }

    #[test]
    fn fields_are_added_to_the_body_and_replace_ours() {
        let fields = json!({"logit_bias": {"2": -100}, "temperature": 0.5});
        let client = Client {
            http: reqwest::Client::new(),
            url: String::new(),
            model: "m".into(),
            api_key: None,
            extra_body: fields.as_object().cloned().unwrap_or_default(),
        };
        let body = client.body(&Prompt::Text("a b".into()), 7);
        assert_eq!(body["prompt"], "a b");
        assert_eq!(body["max_tokens"], 7);
        assert_eq!(body["temperature"], 0.5);
        assert_eq!(body["logit_bias"]["2"], -100);
    }
}

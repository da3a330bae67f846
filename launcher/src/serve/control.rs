//! The launcher's end of the control links.

use std::io;
use std::path::Path;

use lockstep_process::{ChildMessage, ChildReport, LauncherMessage, listen_unix};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::StreamExt;
use tokio_util::task::AbortOnDropHandle;

use super::event::{Event, LinkNumber};

/// Longest accepted line of a child, bytes.
const LONGEST_LINE: u64 = 64 * 1024;

/// Accepts children on `socket` until dropped; sends their messages to `events`.
///
/// # Errors
/// Fails when the socket cannot be made.
pub(super) fn serve(
    socket: &Path,
    events: UnboundedSender<Event>,
) -> io::Result<AbortOnDropHandle<()>> {
    let mut incoming = listen_unix(socket)?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut number = 0;
        // A failed accept concerns one child, whose start then times out.
        while let Some(accepted) = incoming.next().await {
            if let Ok(stream) = accepted {
                tokio::spawn(link(stream, number, events.clone()));
                number += 1;
            }
        }
    })))
}

/// Serves one link. Its first line names the role.
async fn link(stream: UnixStream, number: LinkNumber, events: UnboundedSender<Event>) {
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::new(reader).take(LONGEST_LINE);
    let Some(Ok(ChildMessage::Hello { role, .. })) = next(&mut reader).await else {
        return;
    };
    let (sender, outgoing) = unbounded_channel();
    tokio::spawn(write(writer, outgoing));
    let _ = events.send(Event::Linked(role, number, sender));
    loop {
        let report = match next(&mut reader).await {
            None => ChildReport::Closed,
            Some(Ok(message)) => ChildReport::Message(message),
            Some(Err(line)) => ChildReport::Garbled(line),
        };
        let more = matches!(report, ChildReport::Message(_));
        let _ = events.send(Event::Report(number, report));
        if !more {
            return;
        }
    }
}

/// The next line; `None` at the end. A line that is not understood comes as text.
async fn next(
    reader: &mut tokio::io::Take<BufReader<OwnedReadHalf>>,
) -> Option<Result<ChildMessage, String>> {
    let mut line = Vec::new();
    reader.set_limit(LONGEST_LINE);
    match reader.read_until(b'\n', &mut line).await {
        Ok(read) if read > 0 => {}
        _ => return None,
    }
    Some(serde_json::from_slice(&line).map_err(|_| String::from_utf8_lossy(&line).into_owned()))
}

async fn write(mut writer: OwnedWriteHalf, mut outgoing: UnboundedReceiver<LauncherMessage>) {
    while let Some(message) = outgoing.recv().await {
        let Ok(mut line) = serde_json::to_vec(&message) else {
            continue;
        };
        line.push(b'\n');
        if writer.write_all(&line).await.is_err() {
            return; // The child is gone; its exit says so.
        }
    }
}

//! The thread that serves a control link.

use std::io;
use std::sync::mpsc::Sender;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{HALT_GRACE, Lifecycle, Pings};
use crate::exit;
use crate::message::{ChildMessage, LauncherMessage, MAX_LINE};

/// Reports to the launcher, and messages of the launcher for the role.
pub(super) struct Reports {
    pub(super) outgoing: UnboundedReceiver<ChildMessage>,
    /// Gets every ping; the role answers it.
    pub(super) pings: watch::Sender<Pings>,
    /// Gets the launcher's estimates of when requests will be served.
    pub(super) outlook: watch::Sender<Option<u32>>,
    /// Cancelled when no more reports come.
    pub(super) closing: CancellationToken,
    /// Dropped when all reports are written.
    pub(super) written_all: Sender<()>,
}

/// Starts the thread. It has a runtime of its own, so a role cannot keep it from ending the
/// process.
pub(super) fn start(
    stream: std::os::unix::net::UnixStream,
    reports: Reports,
    lifecycle: Lifecycle,
    end: impl FnOnce(u8) + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    stream.set_nonblocking(true)?;
    let (stream, terminate) = {
        let _entered = runtime.enter();
        (
            UnixStream::from_std(stream)?,
            signal(SignalKind::terminate())?,
        )
    };
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            let (reader, writer) = stream.into_split();
            let told = (reports.pings.clone(), reports.outlook.clone());
            runtime.spawn(write(writer, reports));
            let code = runtime.block_on(until_halt(reader, terminate, &lifecycle, &told));
            lifecycle.halt.cancel();
            runtime.block_on(async { tokio::time::sleep(HALT_GRACE).await });
            end(code);
        })?;
    Ok(())
}

/// Obeys the launcher and SIGTERM. Returns an exit code when the process must stop at once.
async fn until_halt(
    reader: OwnedReadHalf,
    mut terminate: Signal,
    lifecycle: &Lifecycle,
    (pings, outlook): &(watch::Sender<Pings>, watch::Sender<Option<u32>>),
) -> u8 {
    let mut reader = BufReader::new(reader.take(MAX_LINE));
    let mut line = Vec::new();
    loop {
        tokio::select! {
            _ = terminate.recv() => lifecycle.drain.cancel(),
            // Unlike `read_line`, `read_until` keeps the bytes read so far if the other branch
            // wins.
            read = reader.read_until(b'\n', &mut line) => {
                if !matches!(read, Ok(bytes) if bytes > 0) {
                    return exit::LAUNCHER_GONE;
                }
                match serde_json::from_slice(&line) {
                    Ok(LauncherMessage::Leave) => lifecycle.leave.cancel(),
                    Ok(LauncherMessage::Drain) => lifecycle.drain.cancel(),
                    Ok(LauncherMessage::Halt) => return exit::OK,
                    Ok(LauncherMessage::Outlook { served_in_s }) => {
                        outlook.send_replace(served_in_s);
                    }
                    Ok(LauncherMessage::Ping { lost_log_lines }) => pings.send_modify(|pings| {
                        pings.count += 1;
                        pings.lost_log_lines = lost_log_lines;
                    }),
                    Err(error) => tracing::warn!(%error, "the launcher sent an unknown line"),
                }
                line.clear();
                reader.get_mut().set_limit(MAX_LINE);
            }
        }
    }
}

/// Writes reports until they end; then closes this direction of the socket.
async fn write(mut writer: OwnedWriteHalf, reports: Reports) {
    let Reports {
        mut outgoing,
        closing,
        pings: _told_by_the_reader,
        outlook: _as_well,
        written_all: _until_the_end,
    } = reports;
    loop {
        let message = tokio::select! {
            biased;
            message = outgoing.recv() => message,
            () = closing.cancelled() => return,
        };
        let Some(mut line) = message.and_then(|message| serde_json::to_vec(&message).ok()) else {
            return;
        };
        line.push(b'\n');
        if writer.write_all(&line).await.is_err() {
            return; // The reader sees the end of the link as well.
        }
    }
}

//! The control socket of a lab: one line of JSON in, one line of JSON out, then the connection closes.

use crate::error::{NodeError, file};
use crate::lab::{LabStatus, lock_mutex};
use serde_json::{Value, json};
use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// No request is longer.
const REQUEST_BYTES_MAX: u64 = 64 * 1024;
/// A client that says nothing for so long is dropped, since one is served at a time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers what the lab's directory can't. The connection is its own: the usual answer is one line of JSON, then it
/// closes. Requests wait for each other, so whatever takes long goes on in a thread of its own.
pub type ControlHandler = Box<dyn Fn(&Value, UnixStream) + Send>;

/// The handler of a lab, once there is one.
#[derive(Clone, Default)]
pub(crate) struct SharedHandler(pub(crate) Arc<Mutex<Option<ControlHandler>>>);

impl std::fmt::Debug for SharedHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedHandler")
    }
}

/// The thread that answers; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ControlServer {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Binds the socket (in a directory that only the owner can enter) and starts answering.
pub(crate) fn serve(
    path: &Path,
    status: Arc<Mutex<LabStatus>>,
    handler: SharedHandler,
) -> Result<ControlServer, NodeError> {
    let listener = Arc::new(UnixListener::bind(path).map_err(file("bind", path))?);
    set_permissions(path, Permissions::from_mode(0o600)).map_err(file("chmod", path))?;
    let ending = Arc::new(AtomicBool::new(false));
    let (listening, ended) = (listener.clone(), ending.clone());
    let thread = std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for client in listening.incoming() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                // A client that goes away in the middle harms nobody but itself.
                let _ = client.and_then(|client| answer(client, &status, &handler));
            }
        })
        .map_err(file("start a thread for", path))?;
    Ok(ControlServer { listener, ending, thread: Some(thread) })
}

/// Sends one request to a lab's control socket.
pub fn control_request(socket: &Path, request: &Value) -> Result<Value, NodeError> {
    let ask = || -> std::io::Result<Value> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    ask().map_err(file("ask", socket))
}

fn answer(mut client: UnixStream, status: &Mutex<LabStatus>, handler: &SharedHandler) -> std::io::Result<()> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&client).take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let reply = match serde_json::from_str::<Value>(&line) {
        Ok(request) if request["op"] == "ps" => json!(*lock_mutex(status)),
        Ok(request) => match &*lock_mutex(&handler.0) {
            Some(handler) => {
                handler(&request, client);
                return Ok(());
            }
            None => json!({"error": format!("unknown operation {}, expected \"ps\"", request["op"])}),
        },
        Err(error) => json!({"error": format!("request is not JSON: {error}")}),
    };
    client.write_all(format!("{reply}\n").as_bytes())
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // Wakes accept; a listener that fails to shut down is woken by a connection or with the process.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

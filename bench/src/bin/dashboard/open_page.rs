//! `OpenPage`: a dashboard as the server sees it. It reads the event stream, and asks for the rest as often as the page does.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tollgate_bench::generator::http::ask;
use tollgate_bench::process::START_MAX;

/// Paths that the page asks for, and the seconds between two requests.
const POLLS: [(&str, u64); 6] = [
    ("/api/top?by=requests&n=10", 3),
    ("/api/top?by=refusals&n=10", 3),
    ("/api/status", 5),
    ("/api/rules?sort=requests&n=50", 5),
    ("/api/refusals?n=50", 15),
    ("/api/history?range=1h", 15),
];

/// An open page; closing it ends its threads.
pub(crate) struct OpenPage {
    stream: TcpStream,
    stop: Sender<()>,
    reader: JoinHandle<Result<(), String>>,
    poller: JoinHandle<Result<(), String>>,
}

impl OpenPage {
    pub(crate) fn open(admin: SocketAddr) -> Result<OpenPage, String> {
        let stream = open_stream(admin).map_err(|error| format!("/api/events: {error}"))?;
        let events = stream.try_clone().map_err(|error| error.to_string())?;
        let (stop, stopped) = channel();
        Ok(OpenPage {
            stream,
            stop,
            reader: thread::spawn(move || read_events(events)),
            poller: thread::spawn(move || poll(admin, &stopped)),
        })
    }

    /// Closes the page. Returns an error if it did not get what it asked for.
    pub(crate) fn close(self) -> Result<(), String> {
        // Both fail only if a thread has ended already, which its result tells.
        let _ = self.stop.send(());
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.poller.join().expect("the thread does not panic")?;
        self.reader.join().expect("the thread does not panic")
    }
}

fn open_stream(admin: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    Ok(stream)
}

/// Reads until the page is closed. An event stream that says nothing for long is an error.
fn read_events(mut stream: TcpStream) -> Result<(), String> {
    let (mut buffer, mut total) = (vec![0; 16 << 10], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) if total > 0 => return Ok(()),
            Ok(0) => return Err("/api/events ended at once".into()),
            Ok(bytes) if total == 0 && !buffer[..bytes].starts_with(b"HTTP/1.1 200 ") => {
                return Err(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
            }
            Ok(bytes) => total += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("/api/events: {error}")),
        }
    }
}

/// Asks for everything at once, and then for each path when its time has come.
fn poll(admin: SocketAddr, stopped: &Receiver<()>) -> Result<(), String> {
    for second in 0.. {
        for (path, _) in POLLS.iter().filter(|(_, every)| second % every == 0) {
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            let answer = ask(admin, request.as_bytes())?;
            if answer.status != 200 {
                return Err(format!("{path}: {}", answer.text));
            }
        }
        if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    Ok(())
}

//! Callers on loopback: polite ones that send at a steady pace, greedy ones that keep all their connections busy; and the
//! upstream behind the proxies.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The pause of a greedy connection after a refusal: without it the proxies would do nothing but refuse.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(5);

/// The longest wait for a response. A response that takes longer counts as none.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

/// The time before responses to greedy callers count.
const WARM_UP: Duration = Duration::from_secs(1);

/// One caller of a run.
#[derive(Clone, Debug)]
pub(crate) struct BenchCaller {
    pub(crate) name: String,
    pub(crate) tier: &'static str,
    pub(crate) behaviour: CallerBehaviour,
}

/// The way in which a caller sends requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallerBehaviour {
    /// One connection, a request in each interval.
    Polite(Duration),
    /// Connections that send the next request as soon as they have an answer.
    Greedy { connections: usize },
}

/// The requests of one caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerResult {
    pub(crate) sent: u64,
    pub(crate) served: u64,
    /// Times until the responses of served requests.
    pub(crate) waits: Vec<Duration>,
}

/// Lets all callers send to a proxy for a while. The upstream's requests are answered on the same thread.
pub(crate) fn run(
    proxy: SocketAddr,
    upstream: &std::net::TcpListener,
    callers: &[BenchCaller],
    duration: Duration,
) -> io::Result<Vec<CallerResult>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let results = Rc::new(RefCell::new(vec![CallerResult::default(); callers.len()]));
    let listener = upstream.try_clone()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener)?;
        let upstream = tokio::task::spawn_local(serve_upstream(listener));
        let counts_from = Instant::now() + WARM_UP;
        let end = counts_from + duration;
        let mut tasks = Vec::new();
        for (number, caller) in callers.iter().enumerate() {
            let connections = match caller.behaviour {
                CallerBehaviour::Polite(_) => 1,
                CallerBehaviour::Greedy { connections } => connections,
            };
            for _ in 0..connections {
                let results = Rc::clone(&results);
                let record = move |change: &dyn Fn(&mut CallerResult)| {
                    change(&mut results.borrow_mut()[number]);
                };
                let sender =
                    CallerConnection { proxy, caller: caller.clone(), number, counts_from, end };
                tasks.push(tokio::task::spawn_local(sender.send_all(record)));
            }
        }
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        upstream.abort();
        io::Result::Ok(())
    })?;
    Ok(results.take())
}

/// One connection of a caller.
struct CallerConnection {
    proxy: SocketAddr,
    caller: BenchCaller,
    number: usize,
    /// The instant from which the responses to greedy callers count.
    counts_from: Instant,
    end: Instant,
}

impl CallerConnection {
    fn is_greedy(&self) -> bool {
        matches!(self.caller.behaviour, CallerBehaviour::Greedy { .. })
    }

    async fn send_all(self, record: impl Fn(&dyn Fn(&mut CallerResult))) -> io::Result<()> {
        let request = format!(
            "GET /api/items HTTP/1.1\r\nhost: bench\r\nx-user: {}\r\nx-tier: {}\r\n\r\n",
            self.caller.name, self.caller.tier
        );
        let mut stream = BufReader::new(TcpStream::connect(self.proxy).await?);
        // Polite callers do not all send at the same instant.
        let mut next = Instant::now() + Duration::from_millis(7) * self.number as u32;
        while Instant::now() < self.end {
            if let CallerBehaviour::Polite(interval) = self.caller.behaviour {
                sleep_until(next).await;
                next += interval;
            }
            let begun = Instant::now();
            let status = timeout(RESPONSE_MAX, exchange(&mut stream, &request)).await;
            let (wait, is_greedy) = (begun.elapsed(), self.is_greedy());
            // All greedy connections begin at once, and each has a request under way at the end.
            let is_counted = !is_greedy || (self.counts_from..self.end).contains(&Instant::now());
            match status {
                Ok(Ok(status)) => record(&|result| {
                    result.sent += 1;
                    if status == 200 && is_counted {
                        result.served += 1;
                        result.waits.push(wait);
                    }
                }),
                Ok(Err(_)) | Err(_) => {
                    record(&|result| result.sent += 1);
                    stream = BufReader::new(TcpStream::connect(self.proxy).await?);
                }
            }
            if is_greedy && !matches!(status, Ok(Ok(200))) {
                sleep(PAUSE_AFTER_REFUSAL).await;
            }
        }
        Ok(())
    }
}

/// Sends a request and reads its response. Returns the status.
async fn exchange(stream: &mut BufReader<TcpStream>, request: &str) -> io::Result<u16> {
    stream.write_all(request.as_bytes()).await?;
    let (mut line, mut status, mut length) = (String::new(), 0, 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end().to_ascii_lowercase();
        if text.is_empty() {
            break;
        }
        if status == 0 {
            status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        }
        if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(status)
}

async fn serve_upstream(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            // Ends when the proxy closes the connection.
            while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                if line == "\r\n" {
                    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if stream.write_all(response).await.is_err() {
                        return;
                    }
                }
                line.clear();
            }
        });
    }
}

//! The protocol of Redis: `TG.CHECK` and `CL.THROTTLE`.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::connection::LoadPeer;
use super::record::LoadOutcome;
use super::request::KeyedText;
use crate::cli::human_output::printable;

/// Most bytes of a line of a reply, or of a text in it.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Most elements of a reply; those of a decision have at most 6.
const ELEMENTS_MAX: usize = 64;

/// A connection that sends one command at a time.
pub(super) struct RespLoadConnection {
    stream: BufReader<TcpStream>,
    arguments: Arc<[KeyedText]>,
}

impl RespLoadConnection {
    pub(super) async fn open(
        peer: &LoadPeer,
        arguments: Arc<[KeyedText]>,
    ) -> Result<RespLoadConnection, String> {
        let stream = BufReader::new(peer.connect().await?);
        let mut connection = RespLoadConnection { stream, arguments };
        let token = peer.authorization.as_ref().and_then(|field| field.to_str().ok());
        if let Some(token) = token.and_then(|field| field.strip_prefix("Bearer ")) {
            match connection.command(&["AUTH".into(), token.into()]).await? {
                CommandReply::Error(error) => return Err(format!("AUTH: {error}")),
                CommandReply::Number(_) | CommandReply::Other => {}
            }
        }
        Ok(connection)
    }

    pub(super) async fn send(&mut self, key: &str) -> Result<LoadOutcome, String> {
        let arguments: Vec<String> = self.arguments.iter().map(|text| text.with(key)).collect();
        Ok(match self.command(&arguments).await? {
            CommandReply::Number(0) => LoadOutcome::Allowed,
            CommandReply::Number(1) => LoadOutcome::Refused,
            CommandReply::Error(error) => LoadOutcome::Failed(error),
            CommandReply::Number(_) | CommandReply::Other => {
                return Err("the reply is not a decision".into());
            }
        })
    }

    /// Sends a command and reads its whole reply.
    async fn command(&mut self, arguments: &[String]) -> Result<CommandReply, String> {
        let mut command = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            command += &format!("${}\r\n{argument}\r\n", argument.len());
        }
        let sent = self.stream.write_all(command.as_bytes()).await;
        sent.map_err(|error| error.to_string())?;
        let first = self.element().await?;
        let RespElement::List(count) = first else { return Ok(CommandReply::from(first)) };
        let mut reply = CommandReply::Other;
        for index in 0..count {
            let element = self.element().await?;
            if index == 0 {
                reply = CommandReply::from(element);
            }
        }
        Ok(reply)
    }

    /// Reads one element of a reply.
    async fn element(&mut self) -> Result<RespElement, String> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at_checked(1).ok_or("an empty line in the reply")?;
        let number =
            || rest.parse::<i64>().map_err(|_| format!("not a number: {}", printable(rest)));
        match kind {
            "+" | "_" | "#" => Ok(RespElement::Other),
            "-" => Ok(RespElement::Error(printable(rest))),
            ":" => number().map(RespElement::Number),
            "*" => match usize::try_from(number()?) {
                Ok(count) if count > ELEMENTS_MAX => Err("the reply is too long".into()),
                Ok(count) => Ok(RespElement::List(count)),
                Err(_) => Ok(RespElement::Other),
            },
            "$" => match u64::try_from(number()?) {
                Ok(bytes) if bytes > TEXT_BYTES_MAX => Err("the reply is too long".into()),
                Ok(bytes) => self.skip(bytes + 2).await.map(|()| RespElement::Other),
                Err(_) => Ok(RespElement::Other),
            },
            _ => Err("the server does not answer like Redis".into()),
        }
    }

    async fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = (&mut self.stream).take(TEXT_BYTES_MAX).read_line(&mut line).await;
        read.map_err(|error| error.to_string())?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.into()),
            None if line.is_empty() => Err("the server closed the connection".into()),
            None => Err("the reply broke off".into()),
        }
    }

    async fn skip(&mut self, bytes: u64) -> Result<(), String> {
        let mut skipped = Vec::new();
        let read = (&mut self.stream).take(bytes).read_to_end(&mut skipped).await;
        match read.map_err(|error| error.to_string())? as u64 == bytes {
            true => Ok(()),
            false => Err("the reply broke off".into()),
        }
    }
}

/// One element of a reply, as far as it matters.
#[derive(Debug)]
enum RespElement {
    Number(i64),
    /// A list of this length, whose elements follow.
    List(usize),
    Error(String),
    /// A text or null.
    Other,
}

/// A reply: its number or the first number of its list.
#[derive(Debug)]
enum CommandReply {
    Number(i64),
    Error(String),
    Other,
}

impl From<RespElement> for CommandReply {
    fn from(element: RespElement) -> CommandReply {
        match element {
            RespElement::Number(number) => CommandReply::Number(number),
            RespElement::Error(error) => CommandReply::Error(error),
            RespElement::List(_) | RespElement::Other => CommandReply::Other,
        }
    }
}

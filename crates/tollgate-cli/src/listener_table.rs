//! The table of listeners: everything that the rest of the server needs to know about each of them. Settings, access
//! check, assembly, announcement, metrics and shutdown walk this table, so a new data listener is one new file and one
//! row here.

use clap::builder::Arg;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

use crate::data_plane::{DataContext, envoy, gateway, http, resp};
use crate::listeners::service::ListenerService;
use crate::listeners::{BindAddress, ListenerAddress};

/// One listener.
pub(crate) struct ListenerEntry {
    /// Name of its flag, of its metrics label and in logs.
    pub(crate) name: &'static str,
    /// Environment variable of its address.
    env: &'static str,
    default_address: &'static str,
    help: &'static str,
    pub(crate) plane: ListenerPlane,
}

/// Purpose of a listener.
#[derive(Clone, Copy)]
pub(crate) enum ListenerPlane {
    /// Decides requests. Data listeners share token file, certificate, caps and timeouts; each is built by its own
    /// function.
    Data(fn(&DataContext<'_>) -> ListenerService),
    /// Forwards requests: open to all clients, because that is its purpose. Otherwise as a data listener.
    Gateway(fn(&DataContext<'_>) -> ListenerService),
    /// Operates the server: tokens of its own, no TLS, one worker, and idle connections make room. Closes last.
    Control,
}

/// All listeners, in the order in which they are announced and closed.
pub(crate) const LISTENERS: [ListenerEntry; 5] = [
    ListenerEntry {
        name: "http",
        env: "TOLLGATE_HTTP",
        default_address: "127.0.0.1:8080",
        help: "Listener for the check API and forward-auth; port 0 picks a free port, unix:/PATH is a Unix socket, `none` disables it",
        plane: ListenerPlane::Data(http::listener),
    },
    ListenerEntry {
        name: "grpc",
        env: "TOLLGATE_GRPC",
        default_address: "127.0.0.1:8081",
        help: "Listener for Envoy's rate limit service (gRPC)",
        plane: ListenerPlane::Data(envoy::listener),
    },
    ListenerEntry {
        name: "resp",
        env: "TOLLGATE_RESP",
        default_address: "127.0.0.1:6380",
        help: "Listener for Redis clients: CL.THROTTLE, TG.CHECK",
        plane: ListenerPlane::Data(resp::listener),
    },
    ListenerEntry {
        name: "gateway",
        env: "TOLLGATE_GATEWAY",
        default_address: "none",
        help: "Listener of the gateway, which limits requests and forwards them to --upstream or to the upstreams of the rules",
        plane: ListenerPlane::Gateway(gateway::listener),
    },
    ListenerEntry {
        name: "admin",
        env: "TOLLGATE_ADMIN",
        default_address: "127.0.0.1:9190",
        help: "Listener for health checks, metrics and the admin API",
        plane: ListenerPlane::Control,
    },
];

impl ListenerEntry {
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.plane, ListenerPlane::Data(_) | ListenerPlane::Gateway(_))
    }

    /// Returns true if everybody may use it.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self.plane, ListenerPlane::Gateway(_))
    }

    /// Flag of the token file that protects it.
    pub(crate) fn token_flag(&self) -> &'static str {
        match self.plane {
            ListenerPlane::Data(_) | ListenerPlane::Gateway(_) => "--auth-token-file",
            ListenerPlane::Control => "--admin-token-file",
        }
    }
}

/// Addresses of all listeners, in the order of [`LISTENERS`]: one flag for each.
#[derive(Clone, Debug)]
pub(crate) struct ListenerAddresses([ListenerAddress; LISTENERS.len()]);

impl ListenerAddresses {
    /// Each listener with its address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static ListenerEntry, &ListenerAddress)> {
        LISTENERS.iter().zip(&self.0)
    }

    /// Sets the address of a listener.
    pub(crate) fn set(&mut self, name: &str, address: BindAddress) {
        let place = LISTENERS.iter().position(|entry| entry.name == name);
        if let Some(place) = place {
            self.0[place] = ListenerAddress::At(address);
        }
    }

    /// The listeners that are not switched off, with their addresses.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&'static ListenerEntry, &BindAddress)> {
        self.iter().filter_map(|(entry, address)| match address {
            ListenerAddress::At(address) => Some((entry, address)),
            ListenerAddress::None => None,
        })
    }
}

impl FromArgMatches for ListenerAddresses {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ListenerAddresses, Error> {
        let address = |entry: &ListenerEntry| matches.get_one::<ListenerAddress>(entry.name);
        Ok(ListenerAddresses(
            LISTENERS.each_ref().map(|entry| {
                address(entry).cloned().expect("every listener has a default address")
            }),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = ListenerAddresses::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ListenerAddresses {
    fn augment_args(command: Command) -> Command {
        command.args(LISTENERS.iter().map(|entry| {
            Arg::new(entry.name)
                .long(entry.name)
                .value_name("ADDR")
                .env(entry.env)
                .default_value(entry.default_address)
                .value_parser(value_parser!(ListenerAddress))
                .help_heading("Listeners")
                .help(entry.help)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ListenerAddresses::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_listener_is_the_last_and_variables_follow_the_names() {
        let (last, data) = LISTENERS.split_last().expect("there are listeners");
        assert!(!last.is_data() && data.iter().all(ListenerEntry::is_data));
        for entry in &LISTENERS {
            assert_eq!(entry.env, format!("TOLLGATE_{}", entry.name.to_uppercase()));
        }
    }

    #[test]
    fn every_listener_has_a_flag_with_a_default() {
        let command = ListenerAddresses::augment_args(Command::new("serve"));
        let matches = command.try_get_matches_from(["serve", "--grpc", "none"]).expect("flags");
        let addresses = ListenerAddresses::from_arg_matches(&matches).expect("defaults");
        let open: Vec<_> =
            addresses.open().map(|(entry, address)| (entry.name, address.port())).collect();
        assert_eq!(open, [("http", Some(8080)), ("resp", Some(6380)), ("admin", Some(9190))]);
    }
}

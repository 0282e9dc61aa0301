//! The words of events: one closed set for each kind, with a variant for each word.

/// What logs and other outputs show in place of a secret or of its placeholder.
pub const REDACTED: &str = "[CREDENTIAL]";

/// Defines a set, and the word of each variant.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the words are the documentation of each")]
        pub enum $name {
            $($variant,)+
        }

        impl $name {
            /// Returns the word in logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

words! {
    /// Urgency of an event.
    Severity {
        Info = "INFO",
        Low = "LOW",
        Medium = "MED",
        High = "HIGH",
        Critical = "CRIT",
    }
}

words! {
    /// What happened to the connection that an event is about.
    Activity {
        Open = "OPEN",
        Fail = "FAIL",
        Close = "CLOSE",
        Refuse = "REFUSE",
    }
}

words! {
    /// The way by which a connection came to the proxy.
    Door {
        Connect = "connect",
        Forward = "forward",
        Name = "name",
        Socks = "socks",
        Models = "models",
    }
}

words! {
    /// Who or what ended a connection.
    EndedBy {
        Client = "client",
        Upstream = "upstream",
        Policy = "policy",
        Limit = "limit",
        Sandbox = "sandbox",
    }
}

words! {
    /// Effect of a decision.
    Action {
        Allowed = "ALLOWED",
        Denied = "DENIED",
        Other = "OTHER",
    }
}

words! {
    /// The part of the sandbox that decided.
    Engine {
        Policy = "opa",
        Address = "ssrf",
        Tls = "tls",
        Rules = "l7",
        Credential = "credential",
        Inference = "inference",
        Observation = "observe",
        Sandbox = "sandbox",
        Firewall = "nftables",
        Undecided = "-",
    }
}

words! {
    /// A decision.
    Decision {
        Allow = "allow",
        AllowUpgrade = "allow_upgrade",
        Audit = "audit",
        Deny = "deny",
        None = "",
    }
}

words! {
    /// Certainty of a finding.
    Confidence {
        High = "high",
    }
}

words! {
    /// Reaction to a finding.
    FindingActivity {
        Blocked = "BLOCKED",
        Detected = "DETECTED",
    }
}

words! {
    /// State of a part of the sandbox.
    ConfigState {
        Validated = "VALIDATED",
        Loaded = "LOADED",
        Unchanged = "UNCHANGED",
        Failed = "FAILED",
        Enabled = "ENABLED",
        Disabled = "DISABLED",
        Enforced = "ENFORCED",
        Degraded = "DEGRADED",
        Left = "LEFT",
        Proposed = "PROPOSED",
        Approved = "APPROVED",
        Rejected = "REJECTED",
    }
}

words! {
    /// Step of a question to a person.
    ApprovalActivity {
        Asked = "ASKED",
        Granted = "GRANTED",
        Denied = "DENIED",
        Expired = "EXPIRED",
        Revoked = "REVOKED",
    }
}

words! {
    /// Access to a file or folder that a program asked for.
    FileAccess {
        Read = "read",
        List = "list",
        Write = "write",
        Execute = "execute",
    }
}

words! {
    /// Phase of the sandbox's own life.
    LifecycleActivity {
        Start = "START",
        End = "END",
    }
}

words! {
    /// Phase of a command's life.
    ProcessActivity {
        Launch = "LAUNCH",
        Terminate = "TERMINATE",
    }
}

words! {
    /// Step of an SSH connection.
    SshActivity {
        Open = "OPEN",
        Auth = "AUTH",
        Exec = "EXEC",
        Forward = "FORWARD",
        Close = "CLOSE",
    }
}

words! {
    /// The way by which an SSH client came.
    SshDoor {
        Tcp = "tcp",
        Socket = "socket",
        Relay = "relay",
        Exec = "exec",
    }
}

words! {
    /// What an event is about.
    Class {
        Connection = "NET",
        Closed = "NET",
        Bypass = "NET",
        Published = "NET",
        Request = "HTTP",
        Mcp = "MCP",
        Rpc = "RPC",
        Name = "DNS",
        File = "FILE",
        Finding = "FINDING",
        Configuration = "CONFIG",
        Lifecycle = "LIFECYCLE",
        Process = "PROC",
        Ssh = "SSH",
        Approval = "APPROVAL",
    }
}

words! {
    /// The name of a fact of an event.
    Key {
        Access = "access",
        Addresses = "addresses",
        Ancestors = "ancestors",
        AnsweredBy = "answered_by",
        Approval = "approval",
        Authentication = "authentication",
        Binary = "binary",
        BytesIn = "bytes_in",
        BytesOut = "bytes_out",
        Client = "client",
        CmdlinePaths = "cmdline_paths",
        Code = "reason_code",
        Command = "command",
        Confidence = "confidence",
        Credentials = "credentials",
        Decision = "decision",
        Dialed = "dialed",
        Door = "door",
        EndedBy = "ended_by",
        Engine = "engine",
        Exit = "exit_code",
        Grant = "grant",
        Host = "host",
        Id = "id",
        InputTokens = "input_tokens",
        Message = "message",
        Method = "method",
        Milliseconds = "milliseconds",
        Number = "request",
        OutputTokens = "output_tokens",
        Path = "path",
        Pid = "pid",
        Policy = "policy",
        PolicyHash = "policy_hash",
        PolicyVersion = "policy_version",
        Port = "port",
        Protocol = "protocol",
        PublishedAt = "published_at",
        Reason = "reason",
        RecordType = "record_type",
        Repeated = "repeated",
        Route = "route",
        RpcMethod = "rpc_method",
        RpcTarget = "rpc_target",
        Scheme = "scheme",
        Scope = "scope",
        Source = "source",
        State = "state",
        Target = "target",
        Title = "title",
        Ttl = "ttl",
        Uid = "uid",
    }
}

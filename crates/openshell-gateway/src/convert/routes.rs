//! Conversion of routes to models.

use openshell_policy::credential::check_secret;
use openshell_policy::inference::interface::Interface;
use openshell_policy::inference::{
    Backend, Budget, KeySource, MAX_ROUTES, Provider, RouteSpec, Timeouts, Tools,
};
use openshell_policy::secret::Secret;

use crate::proto::inference::v1::{GetInferenceBundleResponse, ResolvedRoute};

/// Routes to models.
#[derive(Debug)]
pub struct Bundle {
    /// A text that changes with the routes.
    pub revision: String,
    /// Routes that this build can serve, with their keys.
    pub routes: Vec<RouteSpec>,
    /// Routes that it cannot serve, each with the reason.
    pub left_out: Vec<String>,
}

/// Time for the first byte of an answer in seconds, if the gateway does not say.
const FIRST_BYTE: u64 = 60;

/// Upper bound of that time.
const LONGEST: u64 = 86_400;

pub(crate) fn read(response: GetInferenceBundleResponse) -> Bundle {
    let mut bundle = Bundle {
        revision: response.revision,
        routes: Vec::new(),
        left_out: Vec::new(),
    };
    for resolved in response.routes {
        let name: String = resolved
            .name
            .chars()
            .filter(|c| !c.is_control())
            .take(64)
            .collect();
        match route(resolved) {
            Ok(_) if bundle.routes.len() >= MAX_ROUTES => bundle
                .left_out
                .push(format!("{name}: at most {MAX_ROUTES} routes are allowed")),
            Ok(route) => bundle.routes.push(route),
            Err(reason) => bundle.left_out.push(format!("{name}: {reason}")),
        }
    }
    bundle
}

fn route(route: ResolvedRoute) -> Result<RouteSpec, String> {
    let key = Secret::new(route.api_key.into_bytes());
    if route.model_in_path {
        return Err("`model_in_path` is not in this build".to_owned());
    }
    if route
        .request_path_override
        .is_some_and(|path| !path.is_empty())
    {
        return Err("`request_path_override` is not in this build".to_owned());
    }
    let known = route
        .protocols
        .iter()
        .filter_map(|word| Interface::parse(word).ok());
    let interfaces: std::collections::BTreeSet<_> = known.collect();
    if interfaces.is_empty() {
        return Err("this build supports none of its protocols".to_owned());
    }
    if route.model_id.trim().is_empty() || route.model_id.chars().any(char::is_control) {
        return Err("it names no model".to_owned());
    }
    let backend = Backend::parse(&route.base_url).map_err(|violation| violation.to_string())?;
    let key = match key.expose() {
        [] => KeySource::None,
        secret => {
            check_secret(secret).map_err(|violation| violation.to_string())?;
            KeySource::Value(key)
        }
    };
    let first_byte = if route.timeout_secs == 0 {
        FIRST_BYTE
    } else {
        route.timeout_secs.min(LONGEST)
    };
    Ok(RouteSpec {
        tools: Tools::default(),
        name: route.name,
        backend,
        model: route.model_id,
        provider: Provider::named(&route.provider_type),
        interfaces,
        key,
        timeouts: Timeouts {
            first_byte,
            ..Timeouts::default()
        },
        budget: Budget::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::proto::inference::v1::{GetInferenceBundleResponse, ResolvedRoute};

    fn resolved(name: &str) -> ResolvedRoute {
        ResolvedRoute {
            name: name.to_owned(),
            base_url: "https://models.test/v1".to_owned(),
            protocols: vec![
                "openai_chat_completions".to_owned(),
                "of_the_future".to_owned(),
            ],
            api_key: "sesame-open".to_owned(),
            model_id: "m".to_owned(),
            ..ResolvedRoute::default()
        }
    }

    #[test]
    fn a_route_that_cannot_be_served_is_left_out_and_named_and_keys_are_not_shown() {
        let routes = vec![
            resolved("good"),
            ResolvedRoute {
                model_in_path: true,
                ..resolved("path")
            },
            ResolvedRoute {
                request_path_override: Some("/x".to_owned()),
                ..resolved("override")
            },
            ResolvedRoute {
                protocols: vec!["of_the_future".to_owned()],
                ..resolved("future")
            },
            ResolvedRoute {
                base_url: "ftp://x".to_owned(),
                ..resolved("scheme")
            },
            ResolvedRoute {
                api_key: "a\nb".to_owned(),
                ..resolved("key")
            },
            ResolvedRoute {
                timeout_secs: 5,
                api_key: String::new(),
                ..resolved("other")
            },
        ];
        let bundle = read(GetInferenceBundleResponse {
            routes,
            revision: "r1".to_owned(),
            generated_at_ms: 0,
        });
        let names: Vec<_> = bundle
            .routes
            .iter()
            .map(|route| (route.name.as_str(), route.timeouts.first_byte))
            .collect();
        assert_eq!(names, [("good", 60), ("other", 5)]);
        let left_out: Vec<_> = bundle
            .left_out
            .iter()
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(left_out, ["path", "override", "future", "scheme", "key"]);
        assert!(!format!("{bundle:?}").contains("sesame"));
    }
}

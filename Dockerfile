# Two images: `supervisor` holds the program alone, `demo` a Debian with the usual tools, in which it is the entrypoint.
#
#   docker build --target supervisor --tag openshell-sandbox .
#   docker build --target demo --tag openshell-sandbox-demo .
#
# BUILD_IMAGE needs cargo, a C compiler and the static library of glibc 2.36 or newer. The base images can be replaced by those of another registry.
ARG BUILD_IMAGE=rust:1.95-slim-bookworm
ARG DEMO_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# The caches keep dependencies, downloaded and compiled, from build to build. `--target` keeps the flags from build scripts and
# procedural macros, which cannot be linked statically.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    target="$(rustc -vV | sed -n 's/^host: //p')" \
    && cargo build --release --locked --config .cargo/static.toml --target "$target" \
    && cp "target/$target/release/openshell-sandbox" /openshell-sandbox

FROM scratch AS supervisor
COPY --from=build /openshell-sandbox /openshell-sandbox
ENTRYPOINT ["/openshell-sandbox"]

FROM ${DEMO_IMAGE} AS demo
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl git nodejs python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 998 sandbox \
    && useradd --uid 998 --gid sandbox --home-dir /sandbox --create-home --shell /bin/bash sandbox
COPY --from=supervisor /openshell-sandbox /usr/local/bin/openshell-sandbox
COPY data/images/demo.yaml /etc/openshell/policy.yaml
WORKDIR /sandbox
# By a flag: the variable would be `openshell-sandbox ps` and `cp` in the container, whose words are then a command's.
ENTRYPOINT ["openshell-sandbox", "--policy-data=/etc/openshell/policy.yaml"]

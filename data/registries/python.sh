# Has pip and uv download something small into the current folder, which is empty.
export PIP_FIND_LINKS= PIP_DISABLE_PIP_VERSION_CHECK=1
status=1
if python3 -m pip download --no-cache-dir --no-deps --dest . six; then status=0; fi
if command -v uv >/dev/null && uv pip install --no-cache --target . six; then status=0; fi
exit $status

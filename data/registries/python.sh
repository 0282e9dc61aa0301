# Has pip or uv download something small into the current folder, which is empty.
export PIP_FIND_LINKS= PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m pip download --no-cache-dir --no-deps --dest . six || uv pip install --no-cache --target . six

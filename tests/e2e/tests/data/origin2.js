// An HTTP/2 origin for the tests: `origin2.js FOLDER PORT[:CERTIFICATE]…`. The path selects the response; each request that was
// read completely is a line of FOLDER/seen: method, target, headers, length of the body, trailers.
const http2 = require('http2'), fs = require('fs'), crypto = require('crypto');
const [folder, ...ports] = process.argv.slice(2);
const note = line => fs.appendFileSync(`${folder}/seen`, JSON.stringify(line) + '\n');

function serve(stream, headers) {
  const [path, query] = headers[':path'].split('?');
  const digest = crypto.createHash('sha256');
  let length = 0, trailers = {};
  stream.on('error', () => {});
  stream.on('aborted', () => note(['ABORTED', headers[':path'], {}, length, {}]));
  stream.on('trailers', sent => trailers = { ...sent });
  if (path === '/echo') {
    stream.respond({ ':status': 200 });
    stream.pipe(stream);
    return;
  }
  stream.on('data', data => { digest.update(data); length += data.length; });
  const answer = (text, fields = {}) => { stream.respond({ ':status': 200, ...fields }); stream.end(text); };
  const asked = () => {
    if (stream.destroyed) return;
    const fields = Object.fromEntries(Object.entries(headers));
    note([headers[':method'], headers[':path'], fields, length, trailers]);
    if (path === '/upload') answer(digest.digest('hex'));
    else if (path === '/204') { stream.respond({ ':status': 204, etag: '"x"' }, { endStream: true }); }
    else if (path === '/trailers') {
      stream.respond({ ':status': 200 }, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'x-end': 'yes' }));
      stream.end('hello');
    } else if (path === '/hints') {
      stream.additionalHeaders({ ':status': 103, link: '</x>' });
      answer('after hints');
    } else if (path === '/big') {
      let left = Number(query);
      const block = Buffer.alloc(65536, 7);
      stream.respond({ ':status': 200, 'content-length': left });
      const more = () => {
        while (left > 0) {
          const part = block.subarray(0, Math.min(left, block.length));
          left -= part.length;
          if (!stream.write(part)) return stream.once('drain', more);
        }
        stream.end();
      };
      more();
    } else if (path === '/silent') { stream.respond({ ':status': 200 }); stream.write('begun'); }
    else if (path === '/reset') stream.close(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
    else if (path === '/refused') stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
    else if (path === '/goaway') { answer('last'); stream.session.goaway(); }
    else if (path === '/gone') stream.session.destroy();
    else if (path === '/given-up') { stream.respond({ ':status': 200 }); stream.write('only this'); setTimeout(() => stream.destroy(), 50); }
    else if (path.startsWith('/slow')) return;
    else if (path === '/cut') { stream.respond({ ':status': 200 }); stream.write('only this'); setTimeout(() => stream.destroy(new Error('cut')), 50); }
    else if (path.startsWith('/reflect')) {
      const back = headers['x-back'] || '';
      stream.respond({ ':status': 200, 'x-back': back }, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'x-end': back }));
      stream.end(JSON.stringify([headers[':method'], headers[':path'], fields]));
    } else if (path === '/sessions') answer(String(sessions));
    else answer('hello');
  };
  if (path === '/early') { stream.respond({ ':status': 413 }); stream.end('stop'); }
  else if (stream.endAfterHeaders) asked();
  else stream.on('end', asked);
}

let sessions = 0, left = ports.length;
for (const port of ports) {
  const [number, certificate] = port.split(':');
  const server = certificate
    ? http2.createSecureServer({ cert: fs.readFileSync(`${folder}/${certificate}.pem`), key: fs.readFileSync(`${folder}/${certificate}.key`) })
    : http2.createServer();
  server.on('session', session => { sessions++; session.on('error', () => {}); });
  server.on('sessionError', () => {});
  server.on('stream', serve);
  server.listen(Number(number), '10.99.0.1', () => { if (--left === 0) console.log('ready'); });
}

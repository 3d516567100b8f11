// Calls a language model by the client libraries of OpenAI and Anthropic, unchanged but for the address, and prints
// as JSON what became of the calls. The library calls again by itself, as often as it does by default.
//
//	node clients.mjs openai|responses|anthropic ADDRESS CALLS
//
// Every second call is streamed. Of those every fourth is given up after its first piece.
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';

const maxTokens = 200;
const defaultHeaders = { 'X-Team': 'node' };
const question = (n) => `${n} ${'word '.repeat(80)}`;

// Each library has a function that answers a question at once, and one that returns a stream, with the text of an event.
const libraries = {
	openai(address) {
		const client = new OpenAI({ apiKey: 'none', defaultHeaders, baseURL: `${address}/v1` });
		const ask = (n, more) => client.chat.completions.create({
			model: 'test', messages: [{ role: 'user', content: question(n) }], max_completion_tokens: maxTokens, ...more,
		});
		return {
			plain: async (n) => (await ask(n)).choices[0].message.content,
			stream: (n) => ask(n, { stream: true, stream_options: { include_usage: true } }),
			text: (chunk) => chunk.choices[0]?.delta.content ?? '',
		};
	},
	responses(address) {
		const client = new OpenAI({ apiKey: 'none', defaultHeaders, baseURL: `${address}/v1` });
		const ask = (n, more) => client.responses.create({ model: 'test', input: question(n), max_output_tokens: maxTokens, ...more });
		return {
			plain: async (n) => (await ask(n)).output_text,
			stream: (n) => ask(n, { stream: true }),
			text: (event) => (event.type === 'response.output_text.delta' ? event.delta : ''),
		};
	},
	anthropic(address) {
		const client = new Anthropic({ apiKey: 'none', defaultHeaders, baseURL: address });
		const ask = (n, more) => client.messages.create({
			model: 'test', messages: [{ role: 'user', content: question(n) }], max_tokens: maxTokens, ...more,
		});
		return {
			plain: async (n) => (await ask(n)).content[0].text,
			stream: (n) => ask(n, { stream: true }),
			text: (event) => (event.type === 'content_block_delta' ? event.delta.text : ''),
		};
	},
};

const [name, address, calls] = process.argv.slice(2);
const library = libraries[name](address);
const results = { answers: [], abandoned: 0, errors: [] };

async function call(n) {
	if (n % 2 === 0) {
		results.answers.push(await library.plain(n));
		return;
	}
	const stream = await library.stream(n);
	let answer = '';
	for await (const event of stream) {
		answer += library.text(event);
		if (n % 8 === 1 && answer !== '') {
			stream.controller.abort();
			results.abandoned++;
			return;
		}
	}
	results.answers.push(answer);
}

await Promise.all(Array.from({ length: Number(calls) }, (_, n) => call(n).catch((e) => results.errors.push(`${n}: ${e}`))));
console.log(JSON.stringify(results));

// A peer of rsocket-kotlin that reads commands, a line each, and writes a line for each; see the README of this folder.

import io.rsocket.kotlin.RSocket
import io.rsocket.kotlin.RSocketError
import io.rsocket.kotlin.RSocketRequestHandler
import io.rsocket.kotlin.core.RSocketConnector
import io.rsocket.kotlin.core.RSocketServer
import io.rsocket.kotlin.payload.Payload
import io.rsocket.kotlin.transport.RSocketTransportApi
import java.net.InetAddress
import java.net.ServerSocket
import kotlin.concurrent.thread
import kotlin.system.exitProcess
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.InternalCoroutinesApi
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.asFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.job
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.io.Buffer
import kotlinx.io.readByteArray
import kotlinx.io.readString
import kotlinx.io.writeString

const val PATIENCE = 30_000L

fun payload(data: ByteArray, metadata: ByteArray? = null) =
    Payload(Buffer().apply { write(data) }, metadata?.let { Buffer().apply { write(it) } })

fun payload(text: String) = payload(text.encodeToByteArray())

fun pattern(size: Int) = ByteArray(size) { (it % 251).toByte() }

/** What both roles serve: an object for each connection, because it ends with that. */
fun handler() = RSocketRequestHandler {
    requestResponse { request ->
        val data = request.data.readByteArray()
        if (data.decodeToString() == "fail") throw RSocketError.Custom(0x301, "as asked for")
        payload(data, request.metadata?.readByteArray())
    }
    requestStream { request -> (0 until request.data.readString().toInt()).asFlow().map { payload("$it") } }
    requestChannel { first, others ->
        flow {
            emit(first)
            emitAll(others)
        }
    }
    fireAndForget { request -> println("noted ${request.data.readByteArray().size}") }
    metadataPush { metadata -> println("pushed ${metadata.readString()}") }
}

@OptIn(RSocketTransportApi::class)
fun listen(fragment: Int): Int {
    val listener = ServerSocket(0, 100, InetAddress.getLoopbackAddress())
    val server = RSocketServer { maxFragmentSize = fragment }
    thread(isDaemon = true) {
        while (true) {
            val socket = listener.accept()
            server.acceptConnection({ handler() }, SocketConnection(SupervisorJob() + Dispatchers.IO, socket))
        }
    }
    return listener.localPort
}

suspend fun connect(port: Int, fragment: Int): RSocket = RSocketConnector {
    maxFragmentSize = fragment
    acceptor { handler() }
}.connect(SocketTarget(port))

@OptIn(InternalCoroutinesApi::class)
suspend fun RSocket.obey(words: List<String>): String {
    val number = words.getOrNull(1)?.toIntOrNull() ?: 0
    when (words[0]) {
        "ask" -> {
            val metadata = words.getOrNull(2)?.toInt()?.let(::pattern)
            val answer = requestResponse(payload(pattern(number), metadata))
            val same = answer.data.readByteArray().contentEquals(pattern(number)) &&
                answer.metadata?.readByteArray().contentEquals(metadata)
            return if (same) "same" else "different"
        }
        "fail" -> requestResponse(payload("fail"))
        "items" -> return requestStream(payload("$number")).toList().joinToString(" ") { it.data.readString() }
        "some" -> return requestStream(payload("1000000")).take(number).toList().joinToString(" ") { it.data.readString() }
        "large" -> return requestStream(payload(pattern(number))).toList().joinToString(" ") { it.data.readString() }
        "channel" -> {
            val items = (1 until number).asFlow().map { payload("$it") }
            return requestChannel(payload("0"), items).toList().joinToString(" ") { it.data.readString() }
        }
        "note" -> fireAndForget(payload(pattern(number)))
        "push" -> metadataPush(Buffer().apply { writeString(words[1]) })
        "leave" -> coroutineContext.job.cancelAndJoin()
        "end" -> {
            coroutineContext.job.join()
            throw coroutineContext.job.getCancellationException()
        }
    }
    return "done"
}

fun main(): Unit = runBlocking {
    var client: RSocket? = null
    while (true) {
        val words = readlnOrNull()?.split(" ") ?: break
        val answer = try {
            withTimeout(PATIENCE) {
                when (words[0]) {
                    "listen" -> "port ${listen(words[1].toInt())}"
                    "connect" -> "done".also { client = connect(words[1].toInt(), words[2].toInt()) }
                    else -> client!!.obey(words)
                }
            }
        } catch (thrown: Throwable) {
            // Why a connection ended is the cause of what its job was cancelled with, for `connect` too, if it ends that early.
            val error = if (thrown is CancellationException) generateSequence<Throwable>(thrown) { it.cause }.last() else thrown
            val code = (error as? RSocketError)?.errorCode
            "error ${code ?: error.javaClass.simpleName} ${error.message?.lineSequence()?.firstOrNull()}"
        }
        println(answer)
    }
    exitProcess(0)
}

// RSocket's frames over TCP, on the blocking sockets of the JVM.

import io.rsocket.kotlin.transport.RSocketClientTarget
import io.rsocket.kotlin.transport.RSocketConnection
import io.rsocket.kotlin.transport.RSocketSequentialConnection
import io.rsocket.kotlin.transport.RSocketTransportApi
import io.rsocket.kotlin.transport.internal.PrioritizationFrameQueue
import java.io.DataInputStream
import java.io.DataOutputStream
import java.io.EOFException
import java.io.IOException
import java.net.Socket
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.io.Buffer
import kotlinx.io.readByteArray

/** A connection that ends with its job: what is queued is written first. */
@OptIn(RSocketTransportApi::class)
class SocketConnection(parent: CoroutineContext, private val socket: Socket) : RSocketSequentialConnection {
    override val coroutineContext: CoroutineContext = parent + Job(parent[Job]) + Dispatchers.IO
    private val input = DataInputStream(socket.getInputStream().buffered())
    private val outbound = PrioritizationFrameQueue()
    private val writing = CoroutineScope(Dispatchers.IO).launch { write() }

    init {
        socket.tcpNoDelay = true
        launch {
            try {
                awaitCancellation()
            } finally {
                withContext(NonCancellable) {
                    outbound.close()
                    writing.join()
                    socket.close()
                }
            }
        }
    }

    override suspend fun sendFrame(streamId: Int, frame: Buffer) = outbound.enqueueFrame(streamId, frame)

    override suspend fun receiveFrame(): Buffer? = withContext(Dispatchers.IO) {
        try {
            val size = (input.readUnsignedByte() shl 16) or input.readUnsignedShort()
            Buffer().apply { write(ByteArray(size).also(input::readFully)) }
        } catch (end: EOFException) {
            null
        } catch (broken: IOException) {
            null
        }
    }

    private suspend fun write() {
        val output = DataOutputStream(socket.getOutputStream().buffered())
        try {
            while (true) {
                var frame = outbound.dequeueFrame() ?: break
                while (true) {
                    val bytes = frame.readByteArray()
                    output.writeByte(bytes.size shr 16)
                    output.writeShort(bytes.size)
                    output.write(bytes)
                    frame = outbound.tryDequeueFrame() ?: break
                }
                output.flush()
            }
        } catch (broken: IOException) {
            // The reader sees it as well.
        } finally {
            outbound.cancel()
        }
    }
}

@OptIn(RSocketTransportApi::class)
class SocketTarget(private val port: Int) : RSocketClientTarget {
    override val coroutineContext: CoroutineContext = SupervisorJob() + Dispatchers.IO

    override suspend fun connectClient(): RSocketConnection = SocketConnection(coroutineContext, Socket("127.0.0.1", port))
}

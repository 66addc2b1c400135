/* The part of Aeron's API that is used here, as cffi reads it. Objects are pointers that only Aeron looks behind, and
   structures end with room for what is not read. */

const char *aeron_errmsg(void);
int aeron_default_path(char *path, size_t length);

int aeron_context_init(void **context);
int aeron_context_close(void *context);
int aeron_context_set_dir(void *context, const char *directory);
int aeron_context_set_client_name(void *context, const char *name);
int aeron_context_set_driver_timeout_ms(void *context, uint64_t milliseconds);
int aeron_context_set_use_conductor_agent_invoker(void *context, bool use);
int aeron_context_set_error_handler(void *context, void (*handler)(void *, int, const char *), void *state);
int aeron_init(void **client, void *context);
int aeron_start(void *client);
int aeron_main_do_work(void *client);
int aeron_close(void *client);
int64_t aeron_next_correlation_id(void *client);
void *aeron_counters_reader(void *client);
int32_t aeron_counters_reader_find_by_type_id_and_registration_id(void *reader, int32_t type, int64_t registration);
int64_t *aeron_counters_reader_addr(void *reader, int32_t counter);

int aeron_async_add_subscription(
    void **adding, void *client, const char *channel, int32_t stream, void *, void *, void *, void *);
int aeron_async_add_subscription_poll(void **subscription, void *adding);
int aeron_subscription_close(void *subscription, void *, void *);
int aeron_subscription_poll(
    void *subscription, void (*handler)(void *, uint8_t *, size_t, void *), void *state, size_t fragments);
int aeron_subscription_image_count(void *subscription);
void *aeron_subscription_image_at_index(void *subscription, size_t index);
int aeron_subscription_image_release(void *subscription, void *image);
int aeron_subscription_try_resolve_channel_endpoint_port(void *subscription, char *channel, size_t length);
bool aeron_image_is_closed(void *image);
int aeron_image_poll(
    void *image, void (*handler)(void *, uint8_t *, size_t, void *), void *state, size_t fragments);
typedef struct
{
    void *subscription;
    const char *source_identity;
    int64_t correlation_id;
    uint8_t others[128];
} aeron_image_constants_t;
int aeron_image_constants(void *image, aeron_image_constants_t *constants);
int aeron_image_fragment_assembler_create(
    void **assembler, void (*handler)(void *, uint8_t *, size_t, void *), void *state);
int aeron_image_fragment_assembler_delete(void *assembler);
void aeron_image_fragment_assembler_handler(void *assembler, uint8_t *data, size_t length, void *header);

int aeron_async_add_exclusive_publication(void **adding, void *client, const char *channel, int32_t stream);
int aeron_async_add_exclusive_publication_poll(void **publication, void *adding);
int aeron_exclusive_publication_close(void *publication, void *, void *);
bool aeron_exclusive_publication_is_connected(void *publication);
int64_t aeron_exclusive_publication_offer(
    void *publication, const uint8_t *data, size_t length, void *, void *);
typedef struct
{
    const char *channel;
    int64_t original_registration_id;
    int64_t registration_id;
    int64_t max_possible_position;
    size_t position_bits_to_shift;
    size_t term_buffer_length;
    size_t max_message_length;
    uint8_t others[128];
} aeron_publication_constants_t;
int aeron_exclusive_publication_constants(void *publication, aeron_publication_constants_t *constants);

int aeron_driver_context_init(void **context);
int aeron_driver_context_close(void *context);
int aeron_driver_context_set_dir(void *context, const char *directory);
int aeron_driver_context_set_dir_warn_if_exists(void *context, bool warn);
int aeron_driver_context_set_threading_mode(void *context, int mode);
int aeron_driver_context_set_term_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_ipc_term_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_publication_connection_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_image_liveness_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_client_liveness_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_publication_linger_timeout_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_counters_buffer_length(void *context, size_t bytes);
int aeron_driver_context_set_timer_interval_ns(void *context, uint64_t nanoseconds);
int aeron_driver_context_set_send_to_status_poll_ratio(void *context, size_t turns);
int aeron_driver_context_set_network_publication_max_messages_per_send(void *context, size_t datagrams);
int aeron_driver_context_set_socket_so_rcvbuf(void *context, size_t bytes);
int aeron_driver_context_set_sender_io_vector_capacity(void *context, uint32_t datagrams);
int aeron_driver_context_set_receiver_io_vector_capacity(void *context, uint32_t datagrams);
int aeron_driver_context_set_stream_session_limit(void *context, int32_t images);
typedef int (*supplier_t)(
    void **, void *, int32_t stream, int32_t, int64_t, int32_t term_length, int32_t, void *, void *, void *, void *);
supplier_t aeron_driver_context_get_congestioncontrol_supplier(void *context);
int aeron_driver_context_set_congestioncontrol_supplier(void *context, supplier_t supplier);
void aeron_err_set(int code, const char *function, const char *file, int line, const char *format, ...);
int aeron_driver_init(void **driver, void *context);
int aeron_driver_start(void *driver, bool manual_main_loop);
int aeron_driver_main_do_work(void *driver);
int aeron_driver_close(void *driver);
